"""Arrival times and lengths of requests, drawn from one seed or read from a trace."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import UsageError

MOST = 1 << 24


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths: ``512``, ``128:1024`` (uniform) or ``lognormal:256:0.8`` (median, sigma)."""

    kind: str
    low: float
    high: float

    @staticmethod
    def parse(text: str) -> Lengths:
        """Read one of the forms above; raises UsageError."""
        parts = text.split(":")
        try:
            if parts[0] == "lognormal" and len(parts) == 3:
                median, sigma = float(parts[1]), float(parts[2])
                if 1 <= median <= MOST and 0 < sigma <= 10:
                    return Lengths("lognormal", median, sigma)
            elif len(parts) <= 2 and all(part.isascii() and part.isdigit() for part in parts):
                low, high = int(parts[0]), int(parts[-1])
                if 1 <= low <= high <= MOST:
                    return Lengths("uniform", low, high)
        except ValueError:
            pass
        remedy = "give 512, 128:1024 (uniform) or lognormal:256:0.8 (median, sigma)"
        raise UsageError(f"length {text!r}", "is no distribution of lengths", remedy)

    def __str__(self) -> str:
        """Return the text that ``parse`` reads back."""
        if self.kind == "lognormal":
            return f"lognormal:{self.low:g}:{self.high:g}"
        return f"{self.low}" if self.low == self.high else f"{self.low}:{self.high}"

    def sample(self, rng: np.random.Generator, count: int, most: int) -> NDArray[np.int64]:
        """Return ``count`` lengths from 1 to ``most``."""
        if self.kind == "lognormal":
            drawn = np.rint(rng.lognormal(math.log(self.low), self.high, count))
        else:
            drawn = rng.integers(int(self.low), int(self.high) + 1, count)
        return np.clip(drawn, 1, most).astype(np.int64)


@dataclass(frozen=True)
class Arrival:
    """A request: its time in seconds after the beginning, its prompt tokens and its new tokens."""

    at: float
    prompt: int
    new: int


COLUMNS = (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), ("arrival", "prompt_tokens", "output_tokens"))
"""Column names of a trace for arrival, prompt and new tokens: those of the Azure LLM inference trace, or plain ones."""


def trace(path: str | Path, count: int, speed: float, context: int) -> list[Arrival]:
    """Return the first ``count`` requests of a trace, in order of arrival, the first at 0 seconds.

    path: CSV with a header of COLUMNS; arrivals are seconds, or dates and times. speed: 2 halves all arrival times.
    context: most positions of one request; longer prompts are cut so that one new token fits, then the numbers of new
    tokens. Raises UsageError if the file is not such a trace.
    """
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            named = next((names for names in COLUMNS if set(names) <= set(reader.fieldnames or ())), None)
            if named is None:
                remedy = f"give a CSV with the columns {' or '.join(','.join(names) for names in COLUMNS)}"
                raise UsageError(str(path), "its first line does not name the columns of a trace", remedy)
            lines = [[line[name] for name in named] for line, _ in zip(reader, range(count), strict=False)]
        found = sorted((_moment(at), int(prompt), int(new)) for at, prompt, new in lines)
    except (OSError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise UsageError(str(path), f"cannot be read as a trace ({error})", "give a CSV file") from error
    if not found or min(min(prompt, new) for _, prompt, new in found) < 0:
        raise UsageError(str(path), "it has no request, or one of negative length", "give another trace")
    first = found[0][0]
    sizes = [min(max(prompt, 1), context - 1) for _, prompt, _ in found]
    return [
        Arrival((at - first) / speed, size, min(max(new, 1), context - size))
        for (at, _, new), size in zip(found, sizes, strict=True)
    ]


def _moment(text: str) -> float:
    """Return a time in seconds; ISO dates may have more fractional digits than Python reads."""
    try:
        return float(text)
    except ValueError:
        whole, _, rest = text.strip().partition(".")
        return datetime.fromisoformat(whole).timestamp() + (float(f"0.{rest}") if rest else 0.0)
