"""What the gateway counts, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from infeng_ray.fleet import Fleet

KIND = b"text/plain; version=0.0.4; charset=utf-8"


class Counts:
    """Counters of one gateway."""

    def __init__(self) -> None:
        """Start at zero."""
        self.retries = 0
        """Calls that another replica answered because the first had no room."""
        self.lost = 0
        """Answers that broke off with their replica."""
        self.resumed = 0
        """Those of them that went on with another replica."""

    def text(self, fleet: Fleet, loads: Mapping[str, int]) -> bytes:
        """Return the metrics of the gateway and the sums of its replicas."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self, fleet, loads))
        return generate_latest(registry)


class _Collector:
    def __init__(self, counts: Counts, fleet: Fleet, loads: Mapping[str, int]) -> None:
        self._counts, self._fleet, self._loads = counts, fleet, loads

    def collect(self) -> Iterator[Metric]:
        states = [replica.state for replica in self._fleet.open]
        running, waiting = sum(state.running for state in states), sum(state.waiting for state in states)
        yield GaugeMetricFamily("infeng:num_requests_running", "Requests that run on all replicas.", running)
        yield GaugeMetricFamily("infeng:num_requests_waiting", "Requests that wait on all replicas.", waiting)
        yield GaugeMetricFamily("infeng:replicas_ready", "Replicas that take calls.", len(states))
        in_flight = GaugeMetricFamily("infeng:replica_calls", "Calls that a replica answers.", labels=["replica"])
        for name, calls in self._loads.items():
            in_flight.add_metric([name], calls)
        yield in_flight
        counts = self._counts
        for name, what, value in (
            ("gateway_retries", "Calls that another replica answered because the first had no room.", counts.retries),
            ("gateway_lost", "Answers whose replica was lost.", counts.lost),
            ("gateway_resumed", "Broken streams that went on with another replica.", counts.resumed),
        ):
            yield CounterMetricFamily(f"infeng:{name}", what, value)
