"""The prompts of `infeng bench zipf`: texts of well-known data sets or of a user's file, or random ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from infeng_bench.load import prompts
from infeng_bench.load.arrivals import Lengths
from infeng_bench.load.prompts import RANDOM

from infeng_core.api import UsageError

FIELDS = ("prompt", "question", "turns", "text", "instruction")
"""Keys of the prompt in a line of JSON; of a list of turns the first counts."""


def texts(name: str, folder: str | None) -> list[str]:
    """Return the prompts of a known set or of a file: JSON lines (also gzipped), or plain lines.

    folder and errors as in ``prompts.read``.
    """
    path, found = prompts.read(name, folder)
    is_json = ".jsonl" in path.suffixes
    return [_prompt(line, path, number) if is_json else line for number, line in found]


def shuffled(texts: Sequence[list[int]], seed: int) -> Iterator[list[int]]:
    """Yield prompts endlessly, each pass over all of them in a new random order; nothing if there are none."""
    rng = np.random.default_rng([seed, 4])
    while texts:
        yield from (texts[index] for index in rng.permutation(len(texts)))


def random_lengths(name: str) -> Lengths | None:
    """Return the lengths of ``random:LENGTH``; None for the name of a set or file."""
    return Lengths.parse(name.removeprefix(RANDOM)) if name.startswith(RANDOM) else None


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
