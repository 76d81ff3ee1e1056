"""Intervals and tests: the paired bootstrap over blocks, McNemar's exact test, equivalence of two proportions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
CONFIDENCE = 0.95
MOST_BLOCKS = 1000
"""Most blocks of a bootstrap; more are joined, since they take seconds and do not improve the interval."""

CELLS = 1 << 22
"""Weights of resamples in memory at a time: 32 MB."""


@dataclass(frozen=True)
class Interval:
    """A figure and its 95% confidence bounds."""

    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """Return the form of results."""
        return {"value": self.value, "low": self.low, "high": self.high}

    def exp(self) -> Interval:
        """Return the interval of the exponential."""
        return Interval(exp(self.value), exp(self.low), exp(self.high))


def exp(x: float) -> float:
    """Return e^x, limited to the range of double precision."""
    return math.exp(min(x, 709.0))


def bootstrap(
    sums: NDArray[np.float64],
    counts: NDArray[np.float64],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> list[Interval]:
    """Return the intervals of means over tokens, from sums over blocks of tokens, by the percentile bootstrap.

    sums: (blocks, figures); counts: tokens of each block, (blocks,). Blocks are drawn with replacement, with all
    figures of a block, so pairs stay paired; a resample's mean is its sum over its count (Efron, Tibshirani, 1993,
    ch. 13). Raises ValueError for fewer than two blocks.
    """
    sums, counts = _joined(sums, counts)
    blocks = len(sums)
    if blocks < 2:
        raise ValueError(f"{blocks} blocks give no interval")
    means = sums.sum(axis=0) / counts.sum()
    random = np.random.default_rng(seed)
    table = np.column_stack([sums, counts])
    found = np.empty((resamples, sums.shape[1]))
    step = max(1, CELLS // blocks)
    for begin in range(0, resamples, step):
        drawn = min(step, resamples - begin)
        weights = random.multinomial(blocks, np.full(blocks, 1 / blocks), size=drawn).astype(np.float64)
        totals = weights @ table  # (drawn, figures + 1)
        found[begin : begin + drawn] = totals[:, :-1] / totals[:, -1:]
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(found, [tail, 100 - tail], axis=0)
    # If all blocks agree, the bounds are set to the mean, from which they differ by rounding.
    flat = np.ptp(sums / counts[:, None], axis=0) == 0
    low, high = np.where(flat, means, low), np.where(flat, means, high)
    return [Interval(float(m), float(a), float(b)) for m, a, b in zip(means, low, high, strict=True)]


def _joined(sums: NDArray[np.float64], counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if len(sums) <= MOST_BLOCKS:
        return sums, counts
    begins = np.linspace(0, len(sums), MOST_BLOCKS, endpoint=False).astype(np.intp)
    return np.add.reduceat(sums, begins, axis=0), np.add.reduceat(counts, begins)


def block_tokens(total: int) -> int:
    """Return the least tokens of a block: 1024, or fewer if that would leave fewer than 100 blocks."""
    return max(1, min(1024, total // 100))


def join_blocks(tokens: NDArray[np.int64], least: int) -> NDArray[np.int64]:
    """Return the block of each part, (parts,): neighbours are joined until a block has ``least`` tokens.

    tokens: of each part, (parts,), in the order of the text. A remainder joins the last block.
    """
    blocks = np.empty(len(tokens), np.int64)
    block, held = 0, 0
    for index, count in enumerate(tokens.tolist()):
        blocks[index] = block
        held += count
        if held >= least:
            block, held = block + 1, 0
    if held and block:
        blocks[blocks == block] = block - 1
    return blocks


@dataclass(frozen=True)
class McNemar:
    """McNemar's test of two models on the same items."""

    gained: int
    """Items that only the second solved."""
    lost: int
    """Items that only the first solved."""
    p: float
    """Of the exact two-sided test of the hypothesis that gains and losses are equally likely."""


def mcnemar(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> McNemar:
    """Return McNemar's exact test of paired answers, (items,) each: a binomial test of the pairs that differ."""
    gained = int((~first & second).sum())
    lost = int((first & ~second).sum())
    return McNemar(gained, lost, binomial_two_sided(min(gained, lost), gained + lost))


def binomial_two_sided(fewer: int, count: int) -> float:
    """Return the two-sided p of at most ``fewer`` heads in ``count`` tosses of a fair coin."""
    tail = sum(math.comb(count, k) for k in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**count))


@dataclass(frozen=True)
class Equivalence:
    """The test whether two models solve the same share of the items within a margin."""

    difference: Interval
    """Second minus first, with the 90% interval, which corresponds to two one-sided tests at 5%."""
    margin: float
    p: float
    """The larger p of the two one-sided tests."""

    @property
    def is_resolved(self) -> bool:
        """Whether the data show that the difference is within the margin."""
        return self.p < 1 - CONFIDENCE


def tost(first: NDArray[np.bool_], second: NDArray[np.bool_], margin: float) -> Equivalence:
    """Return two one-sided tests of paired proportions, from answers (items,) each.

    The interval is Wald's with half an item added to each of the four kinds of pairs (Agresti and Min, 2005), since
    otherwise models that never differ would have an interval of width 0. Raises ValueError without items.
    """
    items = len(first)
    if not items:
        raise ValueError("no items")
    gained, lost = (~first & second).sum() + 0.5, (first & ~second).sum() + 0.5
    count = items + 2.0
    difference = float((gained - lost) / count)
    error = math.sqrt((gained + lost) / count - difference**2) / math.sqrt(count)
    bound = 1.6448536269514722 * error  # the normal's 95% quantile
    p = max(_normal_tail((difference + margin) / error), _normal_tail((margin - difference) / error))
    return Equivalence(Interval(difference, difference - bound, difference + bound), margin, p)


def _normal_tail(z: float) -> float:
    """Return P(Z > z) of a standard normal."""
    return 0.5 * math.erfc(z / math.sqrt(2))
