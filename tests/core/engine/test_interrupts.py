"""Ctrl-C at any moment: afterwards the engine works, for all threads, and closes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tiny_adapter

PROGRAM = Path(__file__).with_name("interrupted.py")


@pytest.mark.parametrize("what", [(), ("processors",)], ids=["plain", "processors"])
@pytest.mark.parametrize("times", [60, pytest.param(5000, marks=pytest.mark.nightly)])
def test_short_calls_may_be_interrupted_at_any_moment(tiny: Path, tmp_path: Path, what: tuple[str, ...], times: int):
    """In a process of its own, which a hang does not outlive."""
    adapter = tiny_adapter.write(tmp_path / "x", 1)
    command = [sys.executable, "-P", str(PROGRAM), str(tiny), str(adapter), str(times), *what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120 + times, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
