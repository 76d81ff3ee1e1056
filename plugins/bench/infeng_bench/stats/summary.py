"""Summaries of readings, with their names in results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = Sequence[float] | NDArray[Any]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return {"median", "min", "max"} of one or more readings."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def percentile(values: Values, share: float) -> float:
    """Return the quantile ``share`` (0 to 1) of the readings, linear between neighbours."""
    return float(np.quantile(values, share))


def latencies(name: str, seconds: Values) -> dict[str, float]:
    """Return ``{mean,median,std,p99}_<name>_ms``; {} without readings."""
    values = 1000 * np.asarray(seconds, np.float64)
    if not len(values):
        return {}
    return {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
        f"p99_{name}_ms": percentile(values, 0.99),
    }


def covered(begins: Values, ends: Values) -> float:
    """Return the length of the union of the spans, in seconds."""
    starts, stops = np.asarray(begins, np.float64), np.asarray(ends, np.float64)
    order = np.argsort(starts)
    before = np.concatenate([[-np.inf], np.maximum.accumulate(stops[order])[:-1]])
    return float(np.maximum(stops[order] - np.maximum(starts[order], before), 0.0).sum())


def rate_within(name: str, tokens: int, begins: Values, ends: Values) -> dict[str, float]:
    """Return ``<name>_tokens_per_s``, tokens over the length of the union of the spans; {} without tokens or time."""
    seconds = covered(begins, ends)
    return {f"{name}_tokens_per_s": tokens / seconds} if tokens and seconds > 0 else {}
