"""Inter-token latencies of millions of tokens, in a histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


class HistogramGaps:
    """Inter-token latencies: exact count, mean and deviation, and quantiles with an error of 0.25%.

    A histogram of fixed size: bins are a factor of 1.005 wide, from a microsecond to more than a day.
    """

    _LOW, _STEP, _BINS = 1e-6, math.log(1.005), 5120

    def __init__(self) -> None:
        """Make an empty histogram."""
        self._counts = [0] * self._BINS
        self._total, self._sum, self._squares = 0, 0.0, 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Add a latency ``count`` times."""
        self._counts[self._bin(seconds)] += count
        self._total += count
        self._sum += seconds * count
        self._squares += seconds * seconds * count

    def add_all(self, ascending: Sequence[float], count: int) -> None:
        """Add each latency ``count`` times."""
        if not ascending:
            return
        edge = -math.inf
        for seconds in ascending:
            if seconds >= edge:
                place = self._bin(seconds)
                edge = self._LOW * math.exp((place + 1) * self._STEP)
            self._counts[place] += count
        self._total += len(ascending) * count
        self._sum += sum(ascending) * count
        self._squares += sum([seconds * seconds for seconds in ascending]) * count

    def _bin(self, seconds: float) -> int:
        return min(int(math.log(max(seconds, self._LOW) / self._LOW) / self._STEP), self._BINS - 1)

    def __len__(self) -> int:
        return self._total

    def quantile(self, share: float) -> float:
        """Return the quantile ``share`` (0 to 1) in seconds, as the middle of its bin."""
        place = int(np.searchsorted(np.cumsum(self._counts), max(1.0, share * self._total)))
        return self._LOW * math.exp((place + 0.5) * self._STEP)

    def figures(self) -> dict[str, float]:
        """Return ``{mean,median,std,p99}_itl_ms``; {} without latencies."""
        if not self._total:
            return {}
        mean = self._sum / self._total
        return {
            "mean_itl_ms": 1000 * mean,
            "median_itl_ms": 1000 * self.quantile(0.5),
            "std_itl_ms": 1000 * math.sqrt(max(0.0, self._squares / self._total - mean * mean)),
            "p99_itl_ms": 1000 * self.quantile(0.99),
        }
