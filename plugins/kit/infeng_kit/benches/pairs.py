"""A part of a plugin beside what does the same without it, measured in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infeng_bench.api import Subject

FEWEST = 3
"""Readings of each at least, however long they take."""
SECONDS = 4.0
"""All readings of a pair together, if FEWEST are enough for it."""
MICROSECONDS = "us"


@dataclass(frozen=True)
class Pair:
    """The same work done twice."""

    part: str  # "kernel rmsnorm_c"
    work: str  # what is done: a problem, "encode"
    beside: str  # what does it without the plugin: "avx2/rmsnorm", "fcfs"
    own: Subject
    other: Subject
    amount: float = 0.0  # of ``unit``, done by one call; 0: a call's time is shown
    unit: str = MICROSECONDS  # of a figure: "us" of a call, or what is done a second: "MB/s"
    rows: int | None = None  # of a kernel's step


@dataclass
class Work:
    """A function as something that is measured: ``once`` returns its seconds."""

    name: str
    run: Callable[[], object]
    calls: int = 1

    def once(self) -> float:
        """Run it, and return the seconds."""
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start


def measured(pair: Pair, most: int) -> dict[str, Any]:
    """Return the figures of ``most`` readings of each, or of fewer where a reading takes long.

    ``ratio`` is how many times as fast as the other the plugin's part is, the median of the pairs; ``ratio_low`` and
    ``ratio_high`` bound it, each with the confidence that ``ratio_confidence`` says.
    """
    from infeng_bench.api import lower_bound, ratios, readings, spread, upper_bound

    first = pair.own.once() + pair.other.once()  # it warms up, too
    rounds = max(FEWEST, min(most, int(SECONDS / first)))
    own, other = readings([pair.own, pair.other], rounds)
    found = ratios(other, own)
    low, high = lower_bound(found), upper_bound(found)
    return {
        "part": pair.part,
        "work": pair.work,
        **({"rows": pair.rows} if pair.rows is not None else {}),
        "beside": pair.beside,
        "unit": pair.unit,
        "figure": _figure(pair, own),
        "figure_beside": _figure(pair, other),
        "seconds": spread(own),
        "seconds_beside": spread(other),
        "ratio": statistics.median(found),
        "ratio_low": low.value,
        "ratio_high": high.value,
        "ratio_confidence": low.confidence,
        "pairs": rounds,
    }


def _figure(pair: Pair, seconds: list[float]) -> float:
    median = statistics.median(seconds)
    return pair.amount / median if pair.amount else 1e6 * median
