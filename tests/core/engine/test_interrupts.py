"""Ctrl-C at any moment: afterwards the engine works, for all threads, and closes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tiny_adapter

PROGRAM = Path(__file__).with_name("interrupted.py")


def test_short_calls_may_be_interrupted_at_any_moment(tiny: Path, tmp_path: Path):
    """In a process of its own, which a hang does not outlive."""
    adapter = tiny_adapter.write(tmp_path / "x", 1)
    command = [sys.executable, "-P", str(PROGRAM), str(tiny), str(adapter), "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 50
