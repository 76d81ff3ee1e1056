"""No bytes make reading a GGUF hang, take memory, or end in an error that nobody expected."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from pathlib import Path

import gguf_fuzzing
import gguf_seeds
import pytest


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    rng, opened = random.Random(3), 0
    for seed in gguf_seeds.write(tmp_path):
        sound = seed.read_bytes()
        assert gguf_fuzzing.read(sound, tmp_path / "damaged"), seed.name
        opened += sum(gguf_fuzzing.read(gguf_fuzzing.damaged(sound, rng), tmp_path / "damaged") for _ in range(30))
    assert 0 < opened < 80


def fuzz(folder: Path, *arguments: str) -> str:
    """Run the command of docs/gguf.md, and return what it said."""
    command = [sys.executable, gguf_fuzzing.__file__, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.slow
def test_the_fuzzer_starts_and_replays_files(tmp_path: Path) -> None:
    assert re.match(r"\d+ files, of which \d+ were", fuzz(tmp_path, "2", "--how", "random"))
    gguf_seeds.adapter(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    assert fuzz(tmp_path, "--replay", "a.gguf", "b.gguf") == "a.gguf: sound\nb.gguf: refused\n"


@pytest.mark.nightly
def test_ten_minutes_of_random_damage_crash_nothing(tmp_path: Path) -> None:
    fuzz(tmp_path, "600", "--seed", str(time.time_ns() % 10**6))
