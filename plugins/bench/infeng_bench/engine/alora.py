"""First tokens of a chain over one conversation: base, activated adapter, base, another one; and a plain adapter's."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from infeng_bench import options
from infeng_bench.engine.place import IN_PROCESS
from infeng_bench.engine.session import alone
from infeng_bench.load.place import Place
from infeng_bench.load.prompts import random_ids
from infeng_bench.load.requests import Job, Reply
from infeng_bench.models.adapters import peft_directory
from infeng_core.api import Engine

INVOKED = 4  # tokens of an invocation
NEW = 4  # tokens of each answer
CHAIN = ("cold", "alora", "base", "second_alora", "lora")
"""What answers, in this order: the base that reads the conversation, a, the base, b, and a plain adapter like a."""

SHOWN = {
    "cold_ttft_ms": ("base, the whole conversation, first token ms", 1.0),
    "alora_ttft_ms": ("activated adapter, first token ms", 1.0),
    "base_ttft_ms": ("base again, first token ms", 1.0),
    "second_alora_ttft_ms": ("another activated adapter, first token ms", 1.0),
    "lora_ttft_ms": ("plain adapter of the same weights, first token ms", 1.0),
    "alora_cached_tokens": ("of the conversation in the cache, activated", 1),
    "lora_cached_tokens": ("of the conversation in the cache, plain", 1),
    "median_itl_ms": ("a step with an adapter, median ms", 1.0),
    "alora_excess_ms": ("activated adapter beyond two steps, ms", 1.0),
    "second_alora_excess_ms": ("another one beyond two steps, ms", 1.0),
    "lora_ratio": ("plain over activated", 1.0),
}
"""The figures of a printed table, as in ``options.listed``."""


@dataclass
class Chain:
    """Seconds to the first token, and cached tokens, of each link by round; seconds of steps after it."""

    ttft: dict[str, list[float]] = field(default_factory=lambda: {link: [] for link in CHAIN})
    cached: dict[str, int] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)  # of activated adapters

    def take(self, link: str, reply: Reply) -> None:
        """Add an answer."""
        self.ttft[link].append(reply.times[0] - reply.sent)
        self.cached[link] = reply.cached
        if link in ("alora", "second_alora"):
            self.steps += [late - early for early, late in pairwise(reply.times)]

    def figures(self) -> dict[str, Any]:
        """Return medians in milliseconds, and what activated adapters take beyond two steps."""
        step = 1000 * statistics.median(self.steps)
        found: dict[str, Any] = {
            f"{link}_ttft_ms": 1000 * statistics.median(taken) for link, taken in self.ttft.items()
        }
        found |= {f"{link}_cached_tokens": count for link, count in self.cached.items()}
        found |= {f"{link}_excess_ms": found[f"{link}_ttft_ms"] - 2 * step for link in ("alora", "second_alora")}
        return {**found, "median_itl_ms": step, "lora_ratio": found["lora_ttft_ms"] / found["alora_ttft_ms"]}


def measured(place: Place, names: Sequence[str], shared: int, tail: int, count: int, seed: int) -> Chain:
    """Measure ``count`` conversations of ``shared`` tokens, to which each call adds ``tail`` tokens.

    names: of the activated adapters, each followed by its invocation's seed, and of the plain one.
    """
    found, (first, second, plain) = Chain(), names
    calls = [("cold", None, 0), ("alora", first, 1), ("base", None, 0), ("second_alora", second, 2), ("lora", plain, 1)]
    for number in options.progress(range(count), "alora"):
        talk = random_ids(shared, seed, 100 + number, place.vocab)
        for link, adapter, invoked in calls:
            asked = invocation(invoked, place.vocab) if invoked else []
            rest = random_ids(tail, seed, 1 + CHAIN.index(link), place.vocab)
            reply = place.whole(Job(0.0, [*talk, *asked, *rest], NEW, adapter))
            found.take(link, reply)
    return found


def invocation(number: int, vocab: int) -> list[int]:
    """Return the tokens of an activated adapter's invocation."""
    return random_ids(INVOKED, 2**30, number, vocab)


def load(engine: Engine, rank: int, targets: str) -> list[str]:
    """Load two activated adapters and a plain one with the first's weights; return their names."""
    vocab, shape, names = engine.model.config.vocab, engine.model.config, []
    for name, seed, number in (("a", 0, 1), ("b", 1, 2), ("plain", 0, 0)):
        tokens = tuple(invocation(number, vocab)) if number else ()
        engine.adapters.load(name, peft_directory(shape, rank, targets, seed, invocation=tokens), pin=True)
        names.append(name)
    return names


def in_process(arguments: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Return the record of an engine of this process. kind: of the record."""
    cache: dict[str, object] = {"kv_cache__prefix": True, "scheduler__step_ms": 0}
    with alone(arguments, cache) as sides, sides.places[IN_PROCESS]() as place:
        names = load(sides.session.engine, arguments.alora, arguments.targets)
        found = measured(place, names, arguments.prompt, arguments.tail, arguments.rounds, arguments.seed)
        return sides.session.record(kind, found.figures(), seed=arguments.seed)
