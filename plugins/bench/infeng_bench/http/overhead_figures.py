"""Figures from rounds of the same requests in-process and over HTTP: ratios, the cost of HTTP, latencies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from infeng_bench.engine.place import IN_PROCESS
from infeng_bench.http.paired import SERVED
from infeng_bench.load.outcomes import latencies_of
from infeng_bench.load.requests import Served
from infeng_bench.options import Column
from infeng_bench.stats import paired
from infeng_bench.stats.contention import withheld
from infeng_bench.stats.summary import percentile, spread

Rounds = Mapping[str, Sequence[Served]]
"""The same requests on each side, IN_PROCESS, SERVED and peers, one per round."""


def figures(clients: int, adapters: int, found: Rounds) -> dict[str, Any]:
    """Return the figures of one number of clients. adapters: number of adapters in the requests; 0: base only."""
    rates = {name: [one.tokens / one.seconds for one in each] for name, each in found.items()}
    waits = {IN_PROCESS: [one.waits for one in found[IN_PROCESS]]}  # none of our other processes runs beside it
    ratio = paired.ratios(rates[SERVED], rates[IN_PROCESS])
    low = paired.lower_bound(ratio)
    return {
        "clients": clients,
        "adapters": adapters,
        "tokens": found[SERVED][0].tokens,
        "engines": {name: _side(each, rates[name]) for name, each in found.items()},
        "served_ratio": quartiles(ratio),
        "served_ratio_low": low.value,
        "served_ratio_low_confidence": low.confidence,
        "http_cpu_us_per_token": quartiles(_costs(found, lambda served: served.cpu_seconds)),
        "http_wall_us_per_token": quartiles(_costs(found, lambda served: served.seconds)),
        **paired.interleaved(rates, waits, SERVED, shown=quartiles, apart={IN_PROCESS: "in-process"}),
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


def _costs(found: Rounds, seconds: Callable[[Served], float]) -> list[float]:
    """Return the microseconds that a token over HTTP takes more than in-process, pair by pair."""
    pairs = zip(found[SERVED], found[IN_PROCESS], strict=True)
    return [1e6 * (seconds(served) - seconds(inside)) / served.tokens for served, inside in pairs]
