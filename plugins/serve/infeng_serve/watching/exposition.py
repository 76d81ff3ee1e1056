"""Prometheus' text format 0.0.4 and OpenMetrics 1.0: families of metrics as lines."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram", "summary", "info"]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Family(NamedTuple):
    """A metric as users know it; ``name`` has its suffix (``_total``, ``_info``) and lacks the prefix."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    """Beside the one of the model."""


class Histogram:
    """Counts of values in buckets; adding one takes some 0.2 us."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Begin with nothing; ``bounds`` ascend, each is the largest value of its bucket."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of each bucket alone; the last is of what is larger than all bounds."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def wants_openmetrics(accept: str) -> bool:
    """Return whether an Accept header asks for OpenMetrics 1.0 at least as much as for the plain text."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.lower().split(","):
        kind, *parameters = (word.strip() for word in part.split(";"))
        given = dict(word.partition("=")[::2] for word in parameters)
        if kind in weights and given.get("version", "1.0.0") in ("0.0.4", "1.0.0"):
            with suppress(ValueError):
                weights[kind] = max(weights[kind], float(given.get("q", "1")))
    openmetrics, text = weights.values()
    return openmetrics > 0 and openmetrics >= text


def labels(**values: str) -> str:
    """Return labels as they stand between braces."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


class Exposition:
    """One answer to a scrape in the making."""

    def __init__(self, openmetrics: bool, prefix: str, common: str) -> None:
        """prefix: before the names of families without one of their own. common: labels of all of those."""
        self._openmetrics = openmetrics
        self._prefix = prefix
        self._common = common
        self._lines: list[str] = []

    def add(self, family: Family, *samples: tuple[str, float]) -> None:
        """Add values with their labels."""
        name, common = self._begin(family)
        for extra, value in samples:
            self._lines.append(f"{name}{_braces(common, extra)} {value!r}")

    def add_histograms(self, family: Family, histograms: Iterable[tuple[str, Histogram]]) -> None:
        """Add histograms with their labels."""
        name, common = self._begin(family)
        for extra, histogram in histograms:
            before = "".join(f"{part}," for part in (common, extra) if part)
            counts = list(accumulate(histogram.counts))
            bounds = (*map(float, histogram.bounds), "+Inf")
            self._lines += [
                f'{name}_bucket{{{before}le="{bound}"}} {count}' for bound, count in zip(bounds, counts, strict=True)
            ]
            own = _braces(common, extra)
            self._lines += [f"{name}_sum{own} {histogram.sum!r}", f"{name}_count{own} {counts[-1]}"]

    def add_summaries(self, family: Family, sums: Iterable[tuple[str, float, int]]) -> None:
        """Add sums and counts with their labels."""
        name, common = self._begin(family)
        for extra, total, count in sums:
            own = _braces(common, extra)
            self._lines += [f"{name}_sum{own} {total!r}", f"{name}_count{own} {count}"]

    def finish(self) -> bytes:
        """Return the whole."""
        if self._openmetrics:
            self._lines.append("# EOF")
        return ("\n".join(self._lines) + "\n").encode()

    def _begin(self, family: Family) -> tuple[str, str]:
        """Write what stands above the values; return their name and the labels that all of them have."""
        is_own = family.name.startswith(("process_", "infeng_"))  # as other programs call theirs
        name = family.name if is_own else f"{self._prefix}:{family.name}"
        shown, kind = name, str(family.kind)
        if self._openmetrics and kind in ("counter", "info"):
            shown = name.removesuffix("_total").removesuffix("_info")
        elif kind == "info":
            kind = "gauge"
        self._lines += [f"# HELP {shown} {family.help}", f"# TYPE {shown} {kind}"]
        return name, "" if is_own else self._common


def _braces(common: str, extra: str) -> str:
    inside = ",".join(part for part in (common, extra) if part)
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
