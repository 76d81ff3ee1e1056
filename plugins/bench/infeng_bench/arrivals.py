"""Requests that come in: when, and how long their prompts and answers are. Everything follows from one seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from infeng_core.errors import UsageError

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

    def draw(self, rng: np.random.Generator, count: int, most: int) -> list[int]:
        """Return ``count`` lengths from 1 to ``most``."""
        if self.kind == "lognormal":
            drawn = np.rint(rng.lognormal(math.log(self.low), self.high, count))
        else:
            drawn = rng.integers(int(self.low), int(self.high) + 1, count)
        return [int(length) for length in np.clip(drawn, 1, most)]


@dataclass(frozen=True)
class Arrival:
    """One request: ``at`` seconds after the beginning come ``prompt`` tokens, and ``new`` are wanted."""

    at: float
    prompt: int
    new: int


def arrivals(count: int, rate: float, prompts: Lengths, answers: Lengths, seed: int, context: int) -> list[Arrival]:
    """Return ``count`` requests in order of arrival.

    rate: requests per second of a Poisson process, infinite for all at once. context: most positions of one request;
    longer prompts are cut so that one new token fits, then answers.
    """
    times, lengths = (np.random.default_rng([seed, stream]) for stream in range(2))
    gaps = np.zeros(count) if math.isinf(rate) else times.exponential(1 / rate, count)
    if count:
        gaps[0] = 0.0
    sizes = prompts.draw(lengths, count, context - 1)
    wanted = answers.draw(lengths, count, context)
    return [
        Arrival(float(at), size, min(new, context - size))
        for at, size, new in zip(np.cumsum(gaps), sizes, wanted, strict=True)
    ]
