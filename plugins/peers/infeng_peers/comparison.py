"""Interleaved rounds of several engines: rates, ratios and shares of the machine's limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infeng_bench.engine.work import Work
from infeng_bench.models.token_costs import Costs
from infeng_bench.reports.machine import linear_features
from infeng_bench.reports.results import OURS
from infeng_bench.stats import paired
from infeng_bench.stats.contention import NOTHING, Waits
from infeng_bench.stats.summary import spread

if TYPE_CHECKING:
    from infeng_bench.kernels.roofline import Roofline

    from infeng_peers.process import EngineProcess


@dataclass(frozen=True)
class Round:
    """One measurement of each engine, one after the other: A B C, then the next round A B C."""

    rates: Mapping[str, float]  # tokens/s
    prefill_seconds: Mapping[str, float]
    waits: Mapping[str, Waits]  # of each engine's threads


def rounds(
    engines: Sequence[EngineProcess], work: Work, count: int, seed: int, done: Callable[[], object] = lambda: None
) -> list[Round]:
    """Measure ``work`` ``count`` times with each engine in turn; one more round before them warms up and is dropped.

    The engines of a round get the same prompts, those of seed, seed + 1, ... seed + count by round.
    """
    found = []
    for number in range(count + 1):
        answers, waits = {}, {}
        for engine in engines:
            answers[engine.name] = engine.measure(work, seed + number)
            waits[engine.name] = engine.waits
            done()
        found.append(
            Round(
                {name: float(answer["tokens_per_s"]) for name, answer in answers.items()},
                {name: float(answer["prefill_seconds"]) for name, answer in answers.items()},
                waits,
            )
        )
    return found[1:]


def compared(
    work: Work, found: Sequence[Round], introductions: Mapping[str, Mapping[str, Any]], roofline: Roofline | None
) -> dict[str, Any]:
    """Return the figures of one work, with ratios of our engine, or of the first one, to each other.

    introductions: each engine's first line, by name.
    """
    names = list(introductions)
    base = OURS if OURS in names else names[0]
    rates = {name: [one.rates[name] for one in found] for name in names}
    engines: dict[str, Any] = {}
    for name in names:
        engines[name] = {"tokens_per_s": spread(rates[name])} | traffic(work, introductions[name])
        if work.kind == "decode":
            engines[name]["prefill_seconds"] = spread([one.prefill_seconds[name] for one in found])
    waits = {name: [one.waits.get(name, NOTHING) for one in found] for name in names}
    return {
        "work": str(work),
        "base": base,
        "engines": engines,
        "roofline": limits(work, engines[base]["tokens_per_s"]["median"], introductions[base], roofline),
        **paired.interleaved(rates, waits, base),
    }


def traffic(work: Work, introduction: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bytes that an engine reads: weights per pass, cache per position, and both per decoded token."""
    weights = introduction.get("bytes_per_token")
    cache = introduction.get("details", {}).get("kv_bytes_per_position")
    found = {"weight_bytes": weights, "kv_bytes_per_position": cache}
    if work.kind == "decode" and weights is not None and cache is not None:
        found["bytes_per_token"] = weights / work.rows + cache * _mean_context(work)
    return {name: value for name, value in found.items() if value is not None}


def limits(work: Work, rate: float, introduction: Mapping[str, Any], roofline: Roofline | None) -> dict[str, Any]:
    """Return the shares of this machine's limits at ``rate`` tokens/s of our engine.

    ``int8_fraction`` is relative to the peak of the instructions of the bound linear kernels (``int8_isa``);
    ``int8_fractions`` to each instruction set of this processor. Prompts read the weights once per step of
    ``max_rows`` rows. Shares are None if the limits are unknown, or for an engine that does not report its costs.
    """
    if roofline is None or introduction.get("engine") != OURS:
        return {"dram_fraction": None, "int8_fraction": None, **(roofline.to_dict() if roofline else {})}
    details = introduction["details"]
    cost = Costs(
        introduction["bytes_per_token"],
        details["block_macs"],
        details["head_macs"],
        details["attention_macs_per_position"],
        details["kv_bytes_per_position"],
        details.get("expert_bytes", 0),
        details.get("expert_share", 1.0),
    )
    seconds = work.tokens / rate
    if work.kind == "decode":
        context = round(_mean_context(work))
        nbytes = work.steps * cost.decode_bytes(work.rows, context)
        macs = work.steps * cost.decode_macs(work.rows, context)
        rows = work.rows
    else:
        rows = min(work.rows * work.context, details["max_rows"])
        nbytes = -(-work.rows * work.context // rows) * cost.step_bytes(rows)
        macs = cost.prefill_macs(work.rows, work.context)
    peak = roofline.int8_of(linear_features(introduction, rows))
    return {
        "dram_fraction": nbytes / seconds / roofline.dram_bytes_per_s,
        "int8_fraction": macs / seconds / peak if peak else None,
        "int8_isa": next((isa for isa, value in roofline.int8.items() if value == peak), None),
        "int8_fractions": {isa: macs / seconds / value for isa, value in roofline.int8.items()},
        "bytes_per_s": nbytes / seconds,
        "macs_per_s": macs / seconds,
        **roofline.to_dict(),
    }


def _mean_context(work: Work) -> float:
    return work.context + (work.steps + 1) / 2
