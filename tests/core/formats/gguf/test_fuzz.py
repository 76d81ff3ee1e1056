"""No bytes make reading a GGUF hang, take memory, or end in an error that nobody expected."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import gguf_fuzzing
import pytest
import tiny_model

from infeng_core.formats.gguf.export import export_gguf


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    shape = tiny_model.Shape(hidden=32, intermediate=32, layers=1, heads=2, kv_heads=1, head_dim=16, vocab=300)
    export_gguf(tiny_model.write(folder / "model", shape), folder / "m.gguf", "q4_0", progress=False)
    return folder / "m.gguf"


def test_damaged_models_are_refused_or_read(sound: Path, tmp_path: Path) -> None:
    data, rng = sound.read_bytes(), random.Random(3)
    assert gguf_fuzzing.read(data, tmp_path / "m.gguf")
    models = [gguf_fuzzing.read(gguf_fuzzing.damaged(data, rng), tmp_path / "m.gguf") for _ in range(100)]
    assert 0 < sum(models) < 60


@pytest.mark.nightly
def test_ten_minutes_of_damage(sound: Path, tmp_path: Path) -> None:
    seed = time.time_ns() % 10**6
    command = [sys.executable, "-P", gguf_fuzzing.__file__, str(sound), "600", str(seed)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr[-4000:]}"
