"""Rendering of metrics by prometheus-client, in Prometheus' text format 0.0.4 or OpenMetrics 1.0."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate

from prometheus_client import exposition as text
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.openmetrics import exposition as openmetrics

from infeng_serve.observability.families import Family


class Histogram:
    """Counts of values in buckets; adding a value takes some 0.2 us."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: the largest value of each bucket, ascending."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Count of each bucket, not cumulative; the last bucket is for values above all bounds."""
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


class Exposition:
    """The answer to one scrape. Label values are in the order of their family's ``labels``.

    Values are copied when they are added; ``collect`` makes families of them, on any thread.
    """

    def __init__(self, prefix: str, common: Mapping[str, str]) -> None:
        """prefix: put before names without their own prefix. common: labels of all families with it."""
        self._prefix = prefix
        self._common = common
        self._families: list[Callable[[], Metric]] = []

    def add(self, family: Family, *samples: tuple[tuple[str, ...], float]) -> None:
        """Add values with their labels."""
        self._families.append(partial(self._info if family.kind == "info" else self._values, family, samples))

    def add_histograms(self, family: Family, histograms: Iterable[tuple[tuple[str, ...], Histogram]]) -> None:
        """Add histograms with their labels."""
        kept = [(values, one.bounds, tuple(one.counts), one.sum) for values, one in histograms]
        self._families.append(partial(self._histograms, family, kept))

    def add_summaries(self, family: Family, sums: Iterable[tuple[tuple[str, ...], float, int]]) -> None:
        """Add sums and counts with their labels."""
        self._families.append(partial(self._summaries, family, list(sums)))

    def _info(self, family: Family, samples: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
        name, common = self._begin(family)
        made = InfoMetricFamily(name, family.help, labels=tuple(common))
        for values, _ in samples:
            made.add_metric(tuple(common.values()), dict(zip(family.labels, values, strict=True)))
        return made

    def _values(self, family: Family, samples: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
        name, common = self._begin(family)
        kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        made = kind(name, family.help, labels=(*common, *family.labels))
        for values, value in samples:
            made.add_metric((*common.values(), *values), value)
        return made

    def _histograms(
        self, family: Family, histograms: Iterable[tuple[tuple[str, ...], Sequence[float], Sequence[int], float]]
    ) -> Metric:
        name, common = self._begin(family)
        made = HistogramMetricFamily(name, family.help, labels=(*common, *family.labels))
        for values, bounds, counts, total in histograms:
            shown = (*map(str, map(float, bounds)), "+Inf")
            made.add_metric((*common.values(), *values), list(zip(shown, accumulate(counts), strict=True)), total)
        return made

    def _summaries(self, family: Family, sums: Iterable[tuple[tuple[str, ...], float, int]]) -> Metric:
        name, common = self._begin(family)
        made = SummaryMetricFamily(name, family.help, labels=(*common, *family.labels))
        for values, total, count in sums:
            made.add_metric((*common.values(), *values), count, total)
        return made

    def collect(self) -> Iterator[Metric]:
        """Yield the families, as a prometheus-client collector."""
        return (make() for make in self._families)

    def render(self, is_open: bool) -> bytes:
        """Return the answer in OpenMetrics or in the text format."""
        exposition = openmetrics if is_open else text
        found: bytes = exposition.generate_latest(
            self, openmetrics.ALLOWUTF8
        )  # other escapings replace the colons in names
        return found

    def _begin(self, family: Family) -> tuple[str, Mapping[str, str]]:
        """Return a family's full name and its common labels."""
        if family.name.startswith(("process_", "infeng_")):  # standard names without prefix
            return family.name.removesuffix("_info"), {}
        return f"{self._prefix}:{family.name}".removesuffix("_info" if family.kind == "info" else ""), self._common
