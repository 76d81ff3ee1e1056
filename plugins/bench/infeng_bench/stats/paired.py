"""Statistics of interleaved measurements: paired ratios, and confidence bounds of their median."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from types import MappingProxyType
from typing import Any

from infeng_bench.stats.contention import Waits, judged
from infeng_bench.stats.summary import spread

CONFIDENCE = 0.95
STARVED = 0.5  # of an engine's own median


@dataclass(frozen=True)
class Bound:
    """A lower or an upper bound of a median."""

    value: float
    confidence: float
    """Least probability that the true median is not beyond ``value``; under 0.95 with too few pairs."""


def lower_bound(values: Sequence[float], confidence: float = CONFIDENCE) -> Bound:
    """Return the one-sided lower bound of the median by order statistics (the inverted sign test).

    The k-th smallest of n independent values is above the true median with probability P(Bin(n, 1/2) < k); k is the
    largest for which this is at most 1 - confidence. The bound assumes no distribution and draws nothing at random.
    With fewer than 5 values the smallest is returned, with its confidence 1 - 2^-n. Raises ValueError without values.
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
    """Return the one-sided upper bound of the median; see ``lower_bound``."""
    turned = lower_bound([-value for value in values], confidence)
    return Bound(-turned.value, turned.confidence)


def ratios(base: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return base / other pair by pair; raises ValueError for unequal lengths or a rate of 0 or less."""
    if len(base) != len(other):
        raise ValueError(f"{len(base)} against {len(other)} values are no pairs")
    if min(*base, *other) <= 0:
        raise ValueError("a rate is not above 0")
    return [a / b for a, b in zip(base, other, strict=True)]


def interleaved(
    rates: Mapping[str, Sequence[float]],
    waits: Mapping[str, Sequence[Waits]],
    base: str,
    *,
    shown: Callable[[Sequence[float]], Any] = statistics.median,
    apart: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the figures of rounds in which engines were measured in turn.

    rates, waits: a value per round, by engine. base: the engine whose ratios to the others are shown. shown: the figure
    of an engine's ratios. apart: engines whose ratios have figures of their own, with their names for people.
    """
    values = {name: ratios(rates[base], rates[name]) for name in rates if name != base}
    bounds = {name: lower_bound(each) for name, each in values.items()}
    bounded = {apart.get(name, name): (statistics.median(each), bounds[name].value) for name, each in values.items()}
    kept = {name: each for name, each in values.items() if name not in apart}
    steal = [statistics.fmean(one.stolen for one in each) for each in zip(*waits.values(), strict=True)]
    starving = starved(list(rates.values()))
    pairs = [dict(zip(rates, each, strict=True)) for each in zip(*rates.values(), strict=True)]
    return {
        "ratios": {name: shown(each) for name, each in kept.items()},
        "ratio_low": {name: bounds[name].value for name in kept},
        "ratio_low_confidence": {name: bounds[name].confidence for name in kept},
        "ratio_spread": {name: spread(each) for name, each in kept.items()},
        "pair_count": len(pairs),
        "starved_pairs": len(starving),
        "starved": starving,
        "steal": spread(steal),
        "contention": judged(waits, bounded),
        "pairs": [{**pair, "steal": round(share, 4)} for pair, share in zip(pairs, steal, strict=True)],
    }


def starved(rates: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of pairs in which an engine ran below half its own median, probably disturbed.

    rates: per engine, a value per pair. Such pairs stay in every figure; results only list them.
    """
    medians = [statistics.median(values) for values in rates]
    return [
        pair
        for pair in range(len(rates[0]))
        if any(values[pair] < STARVED * median for values, median in zip(rates, medians, strict=True))
    ]


def tax(taxes: Sequence[float], rates: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the figures of a tax of adapters: its median with confidence bounds, and both sides' rates.

    taxes: by pair, time with over time without, less 1. rates: tokens/s by pair, by the side's name.
    """
    low, high = lower_bound(taxes), upper_bound(taxes)
    return {
        "lora_tax": spread(taxes)["median"],
        "lora_tax_low": low.value,
        "lora_tax_high": high.value,
        "lora_tax_confidence": low.confidence,
        "lora_tax_spread": spread(taxes),
        "tokens_per_s": {side: spread(values) for side, values in rates.items()},
        "starved": starved(list(rates.values())),
    }
