"""What interleaved measurements say: ratios pair by pair, and how sure one can be of their median."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

from infeng_bench.stats.summary import spread

CONFIDENCE = 0.95
STARVED = 0.5  # of an engine's own median


@dataclass(frozen=True)
class Bound:
    """A lower or an upper bound of a median."""

    value: float
    confidence: float
    """Probability, at least, that the true median is not beyond ``value``; under 0.95 if there are too few pairs."""


def lower_bound(values: Sequence[float], confidence: float = CONFIDENCE) -> Bound:
    """Return the one-sided lower bound of the median by order statistics (the sign test turned round).

    The k-th smallest of n independent values lies above the true median with probability P(Bin(n, 1/2) < k): the
    largest k for which that is at most 1 - confidence. No shape of the distribution is assumed and nothing is drawn at
    random. With fewer than 5 values not even the smallest is sure enough: it is returned with the confidence it has,
    1 - 2^-n. Raises ValueError without values.
    """
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        raise ValueError("no values")
    at_most = comb(count, 0) / 2**count  # P(Bin(count, 1/2) <= place), for place = 0, 1, ...
    place = 0
    while place + 1 < count:
        more = at_most + comb(count, place + 1) / 2**count
        if more > 1 - confidence:
            break
        place, at_most = place + 1, more
    return Bound(ordered[place], 1 - at_most)


def upper_bound(values: Sequence[float], confidence: float = CONFIDENCE) -> Bound:
    """Return the one-sided upper bound of the median, as ``lower_bound`` from the other end."""
    turned = lower_bound([-value for value in values], confidence)
    return Bound(-turned.value, turned.confidence)


def ratios(base: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return base / other pair by pair; raises ValueError for unequal lengths or a rate that is not above 0."""
    if len(base) != len(other):
        raise ValueError(f"{len(base)} against {len(other)} values are no pairs")
    if min(*base, *other) <= 0:
        raise ValueError("a rate is not above 0")
    return [a / b for a, b in zip(base, other, strict=True)]


@dataclass(frozen=True)
class Ratios:
    """Rates of one engine over those of each other one, pair by pair."""

    values: Mapping[str, Sequence[float]]

    @staticmethod
    def of(rates: Mapping[str, Sequence[float]], base: str, leaving_out: Collection[str] = ()) -> Ratios:
        """Return the ratios of ``base`` to all others but some; rates: one value a pair, of each engine."""
        others = [name for name in rates if name != base and name not in leaving_out]
        return Ratios({name: ratios(rates[base], rates[name]) for name in others})

    def figures(self, shown: Callable[[Sequence[float]], Any] = statistics.median) -> dict[str, Any]:
        """Return the ratios as ``shown`` gives each, their lower bounds, and how sure these are."""
        bounds = {name: lower_bound(values) for name, values in self.values.items()}
        return {
            "ratios": {name: shown(values) for name, values in self.values.items()},
            "ratio_low": {name: bound.value for name, bound in bounds.items()},
            "ratio_low_confidence": {name: bound.confidence for name, bound in bounds.items()},
        }

    @property
    def bounded(self) -> dict[str, tuple[float, float]]:
        """Return the median of each, and its lower bound, as ``contention.judged`` takes them."""
        return {name: (statistics.median(each), lower_bound(each).value) for name, each in self.values.items()}

    @property
    def spreads(self) -> dict[str, dict[str, float]]:
        """Return how each spreads."""
        return {name: spread(values) for name, values in self.values.items()}


def starved(rates: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of pairs in which an engine ran below half its own median: a disturbed machine, most likely.

    rates: per engine, one value a pair. Such pairs stay in every figure; results only name them.
    """
    medians = [statistics.median(values) for values in rates]
    return [
        pair
        for pair in range(len(rates[0]))
        if any(values[pair] < STARVED * median for values, median in zip(rates, medians, strict=True))
    ]
