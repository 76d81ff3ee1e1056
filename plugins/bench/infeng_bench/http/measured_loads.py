"""`infeng bench serve --http --load L`: the same load on an engine in this process and on a server over HTTP."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

from infeng_bench import options
from infeng_bench.engine import leave, pace, prefix
from infeng_bench.engine.place import IN_PROCESS
from infeng_bench.http import traffic
from infeng_bench.http.paired import SERVED, SIDES, both, served
from infeng_bench.http.traffic import Figures
from infeng_bench.load import load_options
from infeng_core.api import UsageError

KIND = "serve-load"
MB = 1e6


def _pace(arguments: argparse.Namespace) -> tuple[Figures, dict[str, Any]]:
    """Return each side's figures beside a long prompt, with and without a bound on the time of steps."""
    rows, prompt, step, rounds = (int(arguments.load[name]) for name in ("rows", "prompt", "step", "rounds"))
    return pace.measured(
        lambda settings: both(arguments, settings), rows, prompt, step, rounds, seed=arguments.seed, kind=KIND
    )


def _prefix(arguments: argparse.Namespace) -> tuple[Figures, dict[str, Any]]:
    """Return each side's figures: TTFT with the prefix computed, in memory, and on disk after a restart."""
    prompt, tail, rounds = (int(arguments.load[name]) for name in ("prompt", "tail", "rounds"))
    inside, record, vocab = prefix.in_process(arguments, prompt, tail, rounds, KIND)
    outside = prefix.measured(lambda settings: served(arguments, settings, vocab), prompt, tail, rounds, arguments.seed)
    told = {**outside.figures(inside["prefix_bytes"]), "saved_bytes": outside.saved_bytes}
    return {IN_PROCESS: inside, SERVED: told}, record


def _leave(arguments: argparse.Namespace) -> tuple[Figures, dict[str, Any]]:
    """Return the steps until blocks are free, by side, for clients that disconnect in decode and in prefill."""
    load, found = arguments.load, {}
    with both(arguments, {**load_options.AS_SERVED, "kv_cache__prefix": False}) as sides:
        for side, opened in sides.places.items():
            with opened() as place:
                found[side] = leave.measured(place, int(load["prompt"]), int(load["rounds"]))
        return found, sides.session.record(KIND, {}, seed=arguments.seed)


LOADS: Mapping[str, Callable[[argparse.Namespace], tuple[Figures, dict[str, Any]]]] = {
    "pace": _pace,
    "prefix": _prefix,
    "leave": _leave,
    "tenants": traffic.tenants,
    "zipf": traffic.zipf,
    "overload": traffic.overload,
}
"""The measurement of each special kind of load; ``traffic.any_load`` measures the others."""

SHOWN: Mapping[str, tuple[str, float]] = {
    **pace.SHOWN,
    **prefix.SHOWN,
    "median_decode_steps": ("left in decode: free after steps, median", 1),
    "max_decode_steps": ("most", 1),
    "median_prefill_steps": ("left in prefill: free after steps, median", 1),
    "max_prefill_steps": ("most", 1),
    "alone_median_ttft_ms": ("others without the greedy tenant: first token, median ms", 1),
    "alone_p99_ttft_ms": ("p99 ms", 1),
    "beside_median_ttft_ms": ("beside him, median ms", 1),
    "beside_p99_ttft_ms": ("p99 ms", 1),
    "victim_p99_ttft_ratio": ("beside over without, p99", 1),
    "fcfs_beside_p99_ttft_ms": ("under first-come, p99 ms", 1),
    "jain": ("Jain's index", 1),
    "fcfs_jain": ("under first-come", 1),
    "resident_median_ttft_ms": ("all adapters resident: first token, median ms", 1),
    "resident_p99_ttft_ms": ("p99 ms", 1),
    "half_median_ttft_ms": ("places for half of them, median ms", 1),
    "half_p99_ttft_ms": ("p99 ms", 1),
    "ttft_ratio": ("half over all, median", 1),
    "capacity": ("requests/s of a closed loop", 1),
    "request_rate": ("requests/s that came", 1),
    "request_throughput": ("requests/s", 1),
    "fcfs_request_throughput": ("under first-come", 1),
    "throughput_over_fcfs": ("over first-come", 1),
    "output_throughput": ("new tokens/s", 1),
    "median_ttft_ms": ("first token, median ms", 1),
    "p99_ttft_ms": ("p99 ms", 1),
    "completed": ("answered", 1),
    "answered": ("answered", 1),
    "refused": ("refused", 1),
    "lost": ("lost", 1),
    "p99_e2el_ms": ("whole answer, p99 ms", 1),
    "p50_refusal_ms": ("refusal, median ms", 1),
    "p99_refusal_ms": ("p99 ms", 1),
    "max_refusal_ms": ("longest ms", 1),
    "p50_health_ms": ("/health, median ms", 1),
    "p99_health_ms": ("p99 ms", 1),
    "memory_first_quarter_bytes": ("most memory in the first quarter, MB", 1 / MB),
    "memory_last_quarter_bytes": ("in the last, MB", 1 / MB),
    "client_cpu_share": ("the client: share of a core", 1),
    "client_lag_p99_ms": ("sent later than due, p99 ms", 1),
}
"""Figure -> its label in the table and the factor from the result's unit to the table's."""


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write."""
    if arguments.peer or arguments.clients or arguments.fit or arguments.adapters:
        why = "a load has clients and adapters of its own, and no peer"
        raise UsageError("--http", why, "leave --clients, --adapters, --peer and --fit out, or --load")
    options.model_name(arguments)
    begin = time.monotonic()
    asked = str(arguments.load)
    sides, record = LOADS.get(arguments.load.kind, traffic.any_load)(arguments)
    seconds = time.monotonic() - begin
    result = {"load": str(arguments.load), **record, "asked_load": asked, "sides": sides, "seconds_in_all": seconds}
    return options.deliver(result, arguments, [asked, *options.listed(SHOWN, {side: sides[side] for side in SIDES})])
