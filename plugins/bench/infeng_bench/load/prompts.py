"""Prompts: random ids, well-known data sets, or a user's file."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from infeng_bench.engine.work import FIRST_ID
from infeng_bench.load.arrivals import Lengths
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

FIELDS = ("prompt", "question", "turns", "text", "instruction")
"""Keys of the prompt in a line of JSON; of a list of turns the first counts."""


def texts(name: str, folder: str | None) -> list[str]:
    """Return the prompts of a known set or of a file: JSON lines (also gzipped), or plain lines.

    folder: of the known sets (default: ``$INFENG_BENCH_DATA``). Raises UsageError that names what is missing.
    """
    path, found = _read(name, folder)
    is_json = ".jsonl" in path.suffixes
    return [_prompt(line, path, number) if is_json else line for number, line in found]


def lines(name: str, folder: str | None) -> list[str]:
    """Return the lines of a known set or of a file as they are, without empty ones; arguments as in ``texts``."""
    return [line for _, line in _read(name, folder)[1]]


def _read(name: str, folder: str | None) -> tuple[Path, list[tuple[int, str]]]:
    """Return the file of a set, and its lines that are not empty with their numbers from 1 on."""
    path = _find(name, folder)
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            found = [(number, line.strip()) for number, line in enumerate(file, 1) if line.strip()]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UsageError(str(path), f"cannot be read as text ({error})", "give JSON lines or plain lines") from error
    if not found:
        raise UsageError(str(path), "it has no prompt", "give JSON lines or plain lines")
    return path, found


def shuffled(prompts: Sequence[list[int]], seed: int) -> Iterator[list[int]]:
    """Yield prompts endlessly, each pass over all of them in a new random order; nothing if there are none."""
    rng = np.random.default_rng([seed, 4])
    while prompts:
        yield from (prompts[index] for index in rng.permutation(len(prompts)))


def random_ids(length: int, seed: int, index: int, vocab: int) -> list[int]:
    """Return ``length`` random ids of request ``index``."""
    rng = np.random.default_rng([seed, 2, index])
    drawn: list[int] = rng.integers(min(FIRST_ID, vocab - 1), vocab, length).tolist()
    return drawn


def random_lengths(name: str) -> Lengths | None:
    """Return the lengths of ``random:LENGTH``; None for the name of a set or file."""
    return Lengths.parse(name.removeprefix(RANDOM)) if name.startswith(RANDOM) else None


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


def _prompt(line: str, path: Path, number: int) -> str:
    try:
        data: Any = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{path}:{number}", f"not JSON: {error}", "give JSON lines or plain lines") from error
    for name in FIELDS:
        value = data.get(name) if isinstance(data, dict) else None
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, str) and value:
            return value
    raise UsageError(f"{path}:{number}", "it has no prompt", f"name it {' or '.join(FIELDS)}")
