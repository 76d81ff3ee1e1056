"""Runs of a night without measuring: readings with the noise of a shared machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from infeng_nightly.figures import Figure, Kind
from infeng_nightly.history import Run

RATE = Kind("decoding", "tokens/s", "higher")
TIME = Kind("time to first token", "ms", "lower")
COST = Kind("cost of adapters", "%", "lower", "share", least=0.03)
LOSS = Kind("divergence from f32", "nats", "lower", spread=0.01)
KINDS = {
    "decode 1": (RATE, 340.0), "decode 4": (RATE, 1100.0), "prefill": (RATE, 4900.0), "first": (TIME, 51.0),
    "many": (RATE, 950.0), "first of many": (TIME, 70.0), "cost": (COST, 0.08), "zipf": (RATE, 640.0),
    "first of zipf": (TIME, 31.0), "swap": (Kind("load of an adapter", "ms", "lower", least=0.1, spread=0.04), 11.0),
}  # fmt: skip
"""The figures of a made-up night, by what they measure: their kind and true value."""

NIGHT, TURN, READING = 0.01, 0.007, 0.012
"""Standard deviations of what a whole night, one turn of measuring, and one reading are off by."""
DISTURBED = 0.1
"""Share of the readings that another program slows, by up to 40%."""


class Nights:
    """Draws nights of one machine."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def night(self, slower: Mapping[str, float] | None = None) -> Night:
        """Return a night. slower: the share by which figures are really worse."""
        off = {name: self._random.normal(0, NIGHT) for name in KINDS}
        return Night(self._random, off, dict(slower or {}))


class Night:
    """One night, whose figures can be measured again and again."""

    def __init__(self, random: np.random.Generator, off: Mapping[str, float], slower: Mapping[str, float]) -> None:
        self._random, self._off, self._slower = random, off, slower

    def run(self, time: str = "2026-01-01", count: int = 5) -> Run:
        """Measure once: ``count`` readings of each figure."""
        return run_of([self._figure(name, *of, count) for name, of in KINDS.items()], time)

    def _figure(self, name: str, kind: Kind, true: float, count: int) -> Figure:
        random = self._random
        off = self._off[name] + random.normal(0, TURN) + random.normal(0, READING, count)
        off = off + np.where(random.random(count) < DISTURBED, random.uniform(0.05, 0.4, count), 0)
        factors = np.exp(off) / (1 - self._slower.get(name, 0.0))  # of times
        if kind.scale == "share":
            readings = (1 + true) * factors - 1
        else:
            readings = true * factors if kind.better == "lower" else true / factors
        return Figure.of(kind, readings.tolist(), model="demo", what=name)


def run_of(figures: Sequence[Figure], time: str = "2026-01-01", **facts: Any) -> Run:
    """Return a run of some figures."""
    machine = {"cpu": "Made-up 9000", "cores": 2, "arch": "x86_64"}
    return replace(Run(time, machine, tuple(figures)), **facts)


def steady(value: float = 100.0, kind: Kind = RATE, **facts: Any) -> Figure:
    """Return a figure of five readings close to a value."""
    readings = [value * math.exp(off) for off in (-0.01, -0.005, 0.0, 0.005, 0.01)]
    return Figure.of(kind, readings, **{"model": "demo", "what": "decode", **facts})
