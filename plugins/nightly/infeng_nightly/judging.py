"""Whether a figure became worse: this run against the last runs of the same processor, by an interval of the change.

A run is one draw: besides the noise of its readings it has an effect of its own (memory, frequency, neighbours), so
that the median of a run differs from that of the next by more than its readings show. The spread between runs comes
from the history, moderated by an assumed one, as small samples need it (Smyth, 2004, "Linear models and empirical
Bayes methods", SAGMB 3(1)). Medians and median absolute deviations keep single disturbed readings and runs out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from infeng_nightly.figures import Figure

LAST = 8
"""Runs that a new one is judged against."""

PRIOR_RUNS = 4
"""Runs whose weight the assumed spread has."""

Z = 2.576
"""Of the interval: 99% of a normal distribution."""

MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""

LEAST = 1e-12
"""Smallest value that has a logarithm here."""

Verdict = Literal["new", "same", "better", "worse"]


@dataclass(frozen=True)
class Judgement:
    """The change of a figure; shares, positive where it became better."""

    figure: Figure
    runs: int
    """Earlier runs that it was compared with."""
    change: float = 0.0
    low: float = 0.0
    high: float = 0.0
    """The 99% interval of ``change``."""
    before: float | None = None
    """The median of the earlier runs' medians."""
    verdict: Verdict = "new"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, without the figure."""
        return {
            "figure": self.figure.name, "verdict": self.verdict, "change": self.change, "low": self.low,
            "high": self.high, "before": self.before, "runs": self.runs,
        }  # fmt: skip


def judge(now: Figure, past: Sequence[Figure]) -> Judgement:
    """Judge a figure by the same figure of earlier runs, the oldest first; the last ``LAST`` count.

    It is worse (or better) if its interval excludes no change and the change is at least ``kind.least``.
    """
    past = past[-LAST:]
    if not past:
        return Judgement(now, 0)
    medians = [_median(one) for one in past]
    middle = statistics.median(medians)
    runs = len(past)
    between = _moderated(medians, middle, now.kind.spread)
    variance = between + _error(now)
    variance += (between + statistics.median(map(_error, past))) * (1.0 if runs < 3 else math.pi / 2) / runs
    difference = _median(now) - middle  # of logarithms
    if now.kind.better == "lower":
        difference = -difference
    half = Z * math.sqrt(variance)
    change, low, high = (
        math.expm1(max(-50.0, min(50.0, x))) for x in (difference, difference - half, difference + half)
    )
    verdict: Verdict = "same"
    if abs(change) >= now.kind.least and (low > 0 or high < 0):
        verdict = "better" if change > 0 else "worse"
    return Judgement(now, runs, change, low, high, _value(now, middle), verdict)


def _moderated(medians: Sequence[float], middle: float, assumed: float) -> float:
    """Return the variance between runs."""
    seen = (MAD * statistics.median(abs(one - middle) for one in medians)) ** 2
    free = len(medians) - 1
    return (PRIOR_RUNS * assumed**2 + free * seen) / (PRIOR_RUNS + free)


def _error(figure: Figure) -> float:
    """Return the variance of the median of a figure's readings."""
    logs = _logs(figure)
    middle = statistics.median(logs)
    spread = MAD * statistics.median(abs(one - middle) for one in logs)
    return math.pi / 2 * spread**2 / len(logs)


def _median(figure: Figure) -> float:
    return statistics.median(_logs(figure))


def _logs(figure: Figure) -> list[float]:
    """Return the readings on the scale on which changes add up."""
    if figure.kind.scale == "share":
        return [math.log(max(LEAST, 1 + reading)) for reading in figure.readings]
    return [math.log(max(LEAST, reading)) for reading in figure.readings]


def _value(figure: Figure, log: float) -> float:
    return math.exp(log) - (1 if figure.kind.scale == "share" else 0)
