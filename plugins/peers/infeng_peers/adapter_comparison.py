"""Interleaved rounds of engines that serve requests with adapters: figures, ratios, the cost of adapters."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from infeng_bench.load.outcomes import Outcomes, latencies_of, rates
from infeng_bench.load.requests import Job, Served
from infeng_bench.reports.results import OURS
from infeng_bench.stats import paired
from infeng_bench.stats.contention import judged
from infeng_bench.stats.summary import spread

from infeng_peers.process import EngineProcess
from infeng_peers.workload import Workload

Rounds = Mapping[str, Mapping[str, Sequence[Served]]]  # by engine and variant, one per round

RATES = (
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
)
SUMS = ("completed", "duration", "total_input_tokens", "total_output_tokens")
BASE = "base"

VARIANTS = ("mixed", "single", "base")
"""mixed: the drawn adapters. single: the first adapter for all requests. base: no adapter."""


def rounds(
    engines: Sequence[EngineProcess],
    load: Workload,
    names: Sequence[str],
    vocab: int,
    context: int,
    *,
    places: int,
    warmup: int,
    count: int,
    variants: Sequence[str],
    done: Callable[[], object] = lambda: None,
) -> dict[str, dict[str, list[Served]]]:
    """Serve each variant of a round's requests on each engine, A B C, then the next round.

    warmup: rounds before the kept ones, besides a short request for each adapter. Raises PeerError.
    """
    for engine in engines:
        engine.serve(trial(names, vocab), places)
    found: dict[str, dict[str, list[Served]]] = {engine.name: {kind: [] for kind in variants} for engine in engines}
    for number in range(warmup + count):
        jobs = load.jobs(number, names, vocab, context)
        for engine in engines:
            for kind in variants:
                served = engine.serve(variant(jobs, kind, names), places)
                done()
                if number >= warmup:
                    found[engine.name][kind].append(served)
    return found


def compared(found: Rounds, threads: int, *, is_closed: bool) -> dict[str, Any]:
    """Return the figures of our engine, or of the first one; for several engines, also those of each and ratios."""
    base = OURS if OURS in found else next(iter(found))
    waits = {name: [one.waits for several in kinds.values() for one in several] for name, kinds in found.items()}
    engines = {name: of_engine(kinds, threads, is_closed=is_closed) for name, kinds in found.items()}
    result = dict(engines[base])
    if len(found) == 1:
        return result | {"contention": judged(waits)}
    throughput = {name: output(kinds["mixed"]) for name, kinds in found.items()}
    mixed = {name: [one.waits for one in kinds["mixed"]] for name, kinds in found.items()}
    return result | {"base": base, "engines": engines, **paired.interleaved(throughput, mixed, base)}


def of_engine(kinds: Mapping[str, Sequence[Served]], threads: int, *, is_closed: bool) -> dict[str, Any]:
    """Return the figures of one engine.

    Rates are medians of the rounds, latencies are over all requests. ``lora_tax``: the time with adapters over the time
    of the same requests without, minus 1. ``mixed_over_single``: the output throughput over that of the same requests
    with one adapter. Both are medians of pairs. ``answers_changed``: the share of answers that adapters change.
    """
    found = figures(kinds["mixed"], threads, is_closed=is_closed)
    mixed = output(kinds["mixed"])
    if "base" in kinds:
        taxes = [ratio - 1 for ratio in paired.ratios(output(kinds["base"]), mixed)]
        found |= {"lora_tax": statistics.median(taxes), "lora_tax_spread": spread(taxes)}
        found["base_output_throughput"] = statistics.median(output(kinds["base"]))
        found["answers_changed"] = changed(kinds["mixed"], kinds["base"])
    if "single" in kinds:
        shares = paired.ratios(mixed, output(kinds["single"]))
        low = paired.lower_bound(shares)
        found |= {"mixed_over_single": statistics.median(shares), "mixed_over_single_spread": spread(shares)}
        found |= {"mixed_over_single_low": low.value, "mixed_over_single_low_confidence": low.confidence}
        found["single_output_throughput"] = statistics.median(output(kinds["single"]))
    return found


def figures(served: Sequence[Served], threads: int, *, is_closed: bool) -> dict[str, Any]:
    """Return the figures of the rounds of one variant."""
    each = [rates(Outcomes.of(one.replies)) for one in served]
    replies = [reply for one in served for reply in one.replies]
    users = dict.fromkeys(reply.job.adapter for reply in replies)
    groups = {user or BASE: [reply for reply in replies if reply.job.adapter == user] for user in users}
    return {
        **{name: sum(one[name] for one in each) for name in SUMS},
        **{name: statistics.median(one[name] for one in each) for name in RATES if all(name in one for one in each)},
        "output_throughput_spread": spread(output(served)),
        **latencies_of(replies, is_closed=is_closed),
        "cpu_utilization": sum(one.cpu_seconds for one in served) / sum(one.seconds for one in served) / threads,
        "peak_rss_bytes": max(one.peak_rss_bytes for one in served),
        "per_adapter": {
            name: {
                "requests": len(group),
                "input_tokens": sum(len(reply.job.prompt) for reply in group),
                "output_tokens": sum(reply.job.new for reply in group),
                **latencies_of(group, is_closed=is_closed),
            }
            for name, group in sorted(groups.items())
        },
    }


def output(served: Sequence[Served]) -> list[float]:
    """Return the output throughput of each round, tokens/s."""
    return [float(rates(Outcomes.of(one.replies))["output_throughput"]) for one in served]


def changed(adapted: Sequence[Served], plain: Sequence[Served]) -> float | None:
    """Return the share of requests with an adapter whose answer differs from the base's; None without any."""
    found = [
        one.ids != other.ids
        for first, second in zip(adapted, plain, strict=True)
        for one, other in zip(first.replies, second.replies, strict=True)
        if one.job.adapter is not None
    ]
    return sum(found) / len(found) if found else None


def variant(jobs: Sequence[Job], kind: str, names: Sequence[str]) -> list[Job]:
    """Return the same requests with the adapters of a variant. kind: one of VARIANTS."""
    if kind == "mixed":
        return list(jobs)
    return [replace(job, adapter=names[0] if kind == "single" else None) for job in jobs]


def trial(names: Sequence[str], vocab: int, new: int = 2) -> list[Job]:
    """Return a short request for each adapter and the base, so that first-use costs are not measured."""
    ids = np.random.default_rng(0).integers(0, vocab, 8).tolist()
    return [Job(0.0, ids, new, name) for name in (*names, None)]
