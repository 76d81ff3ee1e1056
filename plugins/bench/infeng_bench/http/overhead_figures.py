"""Figures from rounds of the same requests in-process and over HTTP: ratios, the cost of HTTP, latencies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infeng_bench.engine.place import IN_PROCESS
from infeng_bench.http.own_server import NAME as SERVED
from infeng_bench.load.outcomes import latencies_of
from infeng_bench.load.requests import Served
from infeng_bench.options import Column
from infeng_bench.stats import paired
from infeng_bench.stats.contention import Waits, judged, withheld
from infeng_bench.stats.summary import percentile, spread


@dataclass(frozen=True)
class Round:
    """The same requests on each side, one after the other."""

    served: Mapping[str, Served]  # by side: IN_PROCESS, SERVED, and names of peers

    @property
    def waits(self) -> Waits:
        """The waits of the in-process side's threads: none of our other processes runs beside them."""
        return self.served[IN_PROCESS].waits

    @property
    def steal(self) -> float:
        """The share of the cores' time that the host gave to other machines meanwhile."""
        return self.waits.stolen


def figures(clients: int, adapters: int, rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the figures of one number of clients. adapters: number of adapters in the requests; 0: base only."""
    names = list(rounds[0].served)
    rates = {name: [one.served[name].tokens / one.served[name].seconds for one in rounds] for name in names}
    ratio = paired.ratios(rates[SERVED], rates[IN_PROCESS])
    low = paired.lower_bound(ratio)
    against = paired.Ratios.of(rates, SERVED, (IN_PROCESS,))
    starved = paired.starved(list(rates.values()))
    return {
        "clients": clients,
        "adapters": adapters,
        "tokens": rounds[0].served[SERVED].tokens,
        "engines": {name: _side([one.served[name] for one in rounds], rates[name]) for name in names},
        "served_ratio": quartiles(ratio),
        "served_ratio_low": low.value,
        "served_ratio_low_confidence": low.confidence,
        "http_cpu_us_per_token": quartiles(_costs(rounds, lambda served: served.cpu_seconds)),
        "http_wall_us_per_token": quartiles(_costs(rounds, lambda served: served.seconds)),
        **against.figures(quartiles),
        "pair_count": len(rounds),
        "starved_pairs": len(starved),
        "starved": starved,
        "steal": spread([one.steal for one in rounds]),
        "contention": judged(
            {IN_PROCESS: [one.waits for one in rounds]},
            {"in-process": (quartiles(ratio)["median"], low.value)} | against.bounded,
        ),
        "pairs": [
            {**{name: rates[name][number] for name in names}, "steal": round(one.steal, 4)}
            for number, one in enumerate(rounds)
        ],
    }


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Return {"median", "min", "max", "q1", "q3"}."""
    return {**spread(values), "q1": percentile(values, 0.25), "q3": percentile(values, 0.75)}


TABLE = (
    *(Column(name, name) for name in ("clients", "adapters", "side")),
    Column("tokens/s", "tokens_per_s.median", ".1f"),
    Column("ratio", "ratio"),
    Column("low", "low", ".3f"),
    Column("HTTP cpu us/tok", "http_cpu_us_per_token.median", ".0f"),
    Column("wall us/tok", "http_wall_us_per_token.median", ".0f"),
    Column("loop us/tok", "loop_cpu_us_per_token.median", ".0f"),
    Column("client us/tok", "client_cpu_us_per_token.median", ".0f"),
    Column("ttft ms p50", "median_ttft_ms", ".2f"),
    Column("p99", "p99_ttft_ms", ".2f"),
    Column("itl ms p50", "median_itl_ms", ".2f"),
    Column("p99", "p99_itl_ms", ".2f"),
)


def lines(found: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a line of TABLE for each number of clients and side."""
    for one in found:
        for name, side in one["engines"].items():
            line = {"clients": one["clients"], "adapters": one["adapters"], "side": name, **side}
            ratio, low = one["ratios"].get(name), one["ratio_low"].get(name)
            if name == SERVED:
                ratio, low = one["served_ratio"], one["served_ratio_low"]
                line |= {key: one[key] for key in ("http_cpu_us_per_token", "http_wall_us_per_token")}
            if ratio is not None and not withheld(one):
                line |= {"ratio": f"{ratio['median']:.3f} ({ratio['q1']:.3f} {ratio['q3']:.3f})", "low": low}
            yield line


def _side(served: Sequence[Served], rates: Sequence[float]) -> dict[str, Any]:
    """Return the figures of one side; latencies are over all requests of all rounds."""
    waits = latencies_of([reply for one in served for reply in one.replies], is_closed=True)
    found: dict[str, Any] = {
        "tokens_per_s": quartiles(rates),
        "cpu_us_per_token": quartiles([1e6 * one.cpu_seconds / one.tokens for one in served]),
        "peak_rss_bytes": max(one.peak_rss_bytes for one in served),
        **{name: value for name, value in waits.items() if name.endswith(("ttft_ms", "itl_ms", "e2el_ms"))},
    }
    for name in ("client", "loop"):
        taken = [(getattr(one, f"{name}_cpu_seconds"), one.tokens) for one in served]
        known = [1e6 * seconds / tokens for seconds, tokens in taken if seconds is not None]
        if known:
            found[f"{name}_cpu_us_per_token"] = quartiles(known)
    return found


def _costs(rounds: Sequence[Round], seconds: Callable[[Served], float]) -> list[float]:
    """Return the microseconds that a token over HTTP takes more than in-process, pair by pair."""
    return [
        1e6 * (seconds(one.served[SERVED]) - seconds(one.served[IN_PROCESS])) / one.served[SERVED].tokens
        for one in rounds
    ]
