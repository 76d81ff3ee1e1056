"""How readings spread, by the names that results use."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return {"median", "min", "max"} of one or more readings."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` (0 to 1) of the readings lie, linear between neighbours (as NumPy)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def latencies(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Return ``{mean,median,std,p99}_<name>_ms``; nothing where there are no readings."""
    if not seconds:
        return {}
    values = [1000 * value for value in seconds]
    return {
        f"mean_{name}_ms": statistics.fmean(values),
        f"median_{name}_ms": statistics.median(values),
        f"std_{name}_ms": statistics.pstdev(values),
        f"p99_{name}_ms": percentile(values, 0.99),
    }
