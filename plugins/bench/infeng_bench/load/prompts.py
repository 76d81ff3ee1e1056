"""Prompts: random ids, and the lines of well-known data sets or of a user's file."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np

from infeng_bench.engine.work import FIRST_ID
from infeng_core.api import UsageError, unknown_key_remedy

VARIABLE = "INFENG_BENCH_DATA"
RANDOM = "random:"
SETS = {
    "humaneval": ("HumanEval.jsonl.gz", "HumanEval.jsonl"),
    "gsm8k": ("gsm8k_test.jsonl", "gsm8k.jsonl", "test.jsonl"),
    "mbpp": ("mbpp.jsonl",),
    "prose": ("wikitext2_test.txt", "tinystories.txt"),
    "specbench": ("specbench.jsonl", "question.jsonl"),
}
"""Data set -> its usual file names. No set is part of this wheel: files are read from the user's folder or from a
folder below it."""


def lines(name: str, folder: str | None) -> list[str]:
    """Return the lines of a known set or of a file as they are, without empty ones; arguments as in ``read``."""
    return [line for _, line in read(name, folder)[1]]


def read(name: str, folder: str | None) -> tuple[Path, list[tuple[int, str]]]:
    """Return the file of a known set or of this path, and its lines that are not empty with their numbers from 1 on.

    folder: of the known sets (default: ``$INFENG_BENCH_DATA``). Raises UsageError that names what is missing.
    """
    path = _find(name, folder)
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            found = [(number, line.strip()) for number, line in enumerate(file, 1) if line.strip()]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UsageError(str(path), f"cannot be read as text ({error})", "give JSON lines or plain lines") from error
    if not found:
        raise UsageError(str(path), "it has no prompt", "give JSON lines or plain lines")
    return path, found


def random_ids(length: int, seed: int, index: int, vocab: int) -> list[int]:
    """Return ``length`` random ids of request ``index``."""
    rng = np.random.default_rng([seed, 2, index])
    drawn: list[int] = rng.integers(min(FIRST_ID, vocab - 1), vocab, length).tolist()
    return drawn


def _find(name: str, folder: str | None) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if name not in SETS:
        why = "there is neither a file nor a set of this name"
        raise UsageError(f"prompts {name!r}", why, unknown_key_remedy(name, [*SETS, f"{RANDOM}128"]))
    place = folder or os.environ.get(VARIABLE)
    if not place:
        raise UsageError(f"prompts {name!r}", "no folder of prompts is known", f"give --data DIR or set {VARIABLE}")
    root = Path(place).expanduser()
    for folder_path in (root, *sorted(path for path in root.glob("*") if path.is_dir())):
        for file in SETS[name]:
            if (folder_path / file).is_file():
                return folder_path / file
    raise UsageError(f"prompts {name!r}", f"{root} has no {' or '.join(SETS[name])}", "download it there")
