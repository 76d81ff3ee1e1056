"""Interleaved rounds of several engines, each with and without adapters on the rows of a work: the tax of adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infeng_bench.engine.work import Work
from infeng_bench.stats import paired
from infeng_bench.stats.contention import Waits, judged

from infeng_peers.process import EngineProcess

SIDES = ("without", "with")
SLACK = 0.02  # of the time without adapters, that the tax may exceed the share of their bytes by


@dataclass(frozen=True)
class Pair:
    """The same work on one engine without and with adapters, one right after the other."""

    rates: Mapping[str, float]  # tokens/s by side
    waits: Mapping[str, Waits]  # of the engine's threads, by side

    @property
    def tax(self) -> float:
        """The time of a token with adapters over that without, minus 1."""
        return self.rates["without"] / self.rates["with"] - 1


@dataclass(frozen=True)
class Sizes:
    """What a step of one engine reads, as far as the engine says it."""

    weights: int | None  # bytes of the base's weights in one pass
    adapters: int | None  # bytes of A and B of the adapters of all rows
    passes: int  # over the base's weights in a step with adapters

    @staticmethod
    def of(engine: EngineProcess, rows: int, names: Sequence[str]) -> Sizes:
        """Return those of a loaded engine. names: the adapters that ``rows`` rows use in turn."""
        used = names[:rows]
        known = [engine.adapter_bytes[name] for name in used if name in engine.adapter_bytes]
        mixes = engine.introduction.get("details", {}).get("mixes", True)
        adapters = sum(known) if len(known) == len(used) else None
        return Sizes(engine.introduction.get("bytes_per_token"), adapters, 1 if mixes else len(used))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures of a result; ``bytes_share`` counts the adapters once and no second pass of the base."""
        found: dict[str, Any] = {"weight_bytes": self.weights, "adapter_bytes": self.adapters, "passes": self.passes}
        if self.weights and self.adapters is not None:
            share = self.adapters / self.weights
            found |= {"bytes_share": share, "tax_goal": share + SLACK}
        return {name: value for name, value in found.items() if value is not None}


def rounds(
    engines: Sequence[EngineProcess],
    work: Work,
    names: Sequence[str],
    count: int,
    seed: int,
    done: Callable[[], object] = lambda: None,
) -> list[dict[str, Pair]]:
    """Measure ``work`` without and with adapters on each engine in turn, ``count`` times; a round before is dropped.

    names: the loaded adapters that rows use in turn. All engines and both sides of a round get the same prompts, those
    of seed, seed + 1, ... by round. The side that begins alternates.
    """
    found = []
    for number in range(count + 1):
        pairs = {}
        for engine in engines:
            rates, waits = {}, {}
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                answer = engine.measure(work, seed + number, names if side == "with" else ())
                rates[side], waits[side] = float(answer["tokens_per_s"]), engine.waits
                done()
            pairs[engine.name] = Pair(rates, waits)
        found.append(pairs)
    return found[1:]


def compared(found: Sequence[Mapping[str, Pair]], sizes: Mapping[str, Sizes]) -> dict[str, Any]:
    """Return the figures of each engine and of the whole run."""
    each = {name: [pairs[name] for pairs in found] for name in sizes}
    waits = {name: [one.waits[side] for one in pairs for side in SIDES] for name, pairs in each.items()}
    engines = {name: {**taxed(pairs), **sizes[name].to_dict()} for name, pairs in each.items()}
    bounds = {
        f"{name} without adapters": (1 + one["lora_tax"], 1 + one["lora_tax_low"]) for name, one in engines.items()
    }
    return {
        "engines": engines,
        "pair_count": len(found),
        "contention": judged(waits, bounds),
        "pairs": [{name: dict(pair.rates) for name, pair in pairs.items()} for pairs in found],
    }


def taxed(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the figures of one engine: the tax, its confidence bounds, and both rates."""
    return paired.tax([pair.tax for pair in pairs], {side: [pair.rates[side] for pair in pairs] for side in SIDES})
