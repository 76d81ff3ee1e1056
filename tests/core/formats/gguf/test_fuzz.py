"""No bytes make reading a GGUF hang, take memory, or end in an error that nobody expected."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_model

from infeng_core.formats.gguf.export import export_gguf

SCRIPT = Path(__file__).with_name("fuzzing.py")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    shape = tiny_model.Shape(hidden=32, intermediate=32, layers=1, heads=2, kv_heads=1, head_dim=16, vocab=300)
    export_gguf(tiny_model.write(folder / "model", shape), folder / "m.gguf", "q4_0", progress=False)
    return folder / "m.gguf"


def fuzz(sound: Path, folder: Path, seconds: int, *how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(SCRIPT), str(sound), str(seconds), str(time.time_ns() % 10**6), *how]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds + 300, check=False)


def test_damaged_models_are_refused_or_read(sound: Path, tmp_path: Path) -> None:
    done = fuzz(sound, tmp_path, 1, "own")
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[0]) > 10


@pytest.mark.nightly
def test_ten_minutes_of_damage(sound: Path, tmp_path: Path) -> None:
    done = fuzz(sound, tmp_path, 600)
    assert done.returncode == 0, f"{done.args}: {done.stderr[-4000:]}"
