"""TTFT of prompts whose prefix is computed, cached in memory, or saved on disk."""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from infeng_bench import options
from infeng_bench.engine.running import greedy
from infeng_bench.engine.session import opened
from infeng_bench.load.prompts import random_ids
from infeng_core.api import Engine


@dataclass
class FirstTokens:
    """TTFT in seconds by where the prefix comes from."""

    cold: list[float] = field(default_factory=list)  # computed
    hit: list[float] = field(default_factory=list)  # in memory
    saved: list[float] = field(default_factory=list)  # on disk
    steps: list[float] = field(default_factory=list)  # seconds of a decode step after the first token


First = Callable[[list[int]], tuple[float, float]]
"""Requests four tokens after a prompt; returns the seconds to the first and the median of the next three."""


class Prompts:
    """Prompts that share their prefixes."""

    def __init__(self, shared: int, tail: int, count: int, seed: int, vocab: int) -> None:
        """Draw ``count`` prefixes of ``shared`` tokens and three tails of ``tail`` tokens."""
        self._prompts = [random_ids(shared, seed + k, 0, vocab) for k in range(count)]
        self._tails = [random_ids(tail, seed, 1 + k, vocab) for k in range(3)]

    def compute(self, first: First, found: FirstTokens) -> None:
        """Request each prefix with the first tail (computed) and with the two others (in memory)."""
        for prompt in options.progress(self._prompts, "prefix"):
            found.cold.append(first(prompt + self._tails[0])[0])
            for end in self._tails[1:]:
                seconds, each = first(prompt + end)
                found.hit.append(seconds)
                found.steps.append(each)

    def restore(self, first: First, found: FirstTokens) -> None:
        """Request the prompts from an engine or server that finds their prefixes on disk."""
        first(self._tails[0])
        found.saved += [first(prompt + self._tails[1])[0] for prompt in self._prompts]


class Inside(NamedTuple):
    """The measurement on engines of this process."""

    firsts: FirstTokens
    nbytes: int  # KV cache bytes of one prefix
    prompts: Prompts
    record: dict[str, Any]


def in_process(arguments: argparse.Namespace, shared: int, tail: int, rounds: int, kind: str = "prefix") -> Inside:
    """Measure one engine, then a second one that starts with the saved prefixes. kind: of the record."""
    found = FirstTokens()
    with tempfile.TemporaryDirectory(prefix="infeng-prefix-") as folder:
        with opened(arguments, **as_served(folder)) as session:
            engine = session.engine
            prompts = Prompts(shared, tail, rounds, arguments.seed, engine.model.config.vocab)
            prompts.compute(partial(_first, engine), found)
            nbytes = _cached_bytes(engine, shared)
        with opened(arguments, **as_served(folder)) as session:
            prompts.restore(partial(_first, session.engine), found)
            return Inside(found, nbytes, prompts, session.record(kind, {}, seed=arguments.seed))


def as_served(folder: str) -> dict[str, object]:
    """Return the settings of an engine that saves prefixes in ``folder``."""
    return {"kv_cache__prefix": True, "kv_cache__prefix_dir": folder}


def _first(engine: Engine, ids: list[int]) -> tuple[float, float]:
    """Return the seconds to the first token after ``ids``, and the median of the next three."""
    stream = engine.submit(ids, greedy(4))
    times = [time.perf_counter()]
    times.extend(time.perf_counter() for _ in stream)
    first, *others = (after - before for before, after in itertools.pairwise(times))
    return first, statistics.median(others)


def _cached_bytes(engine: Engine, tokens: int) -> int:
    """Return the bytes of the whole KV blocks of ``tokens``."""
    return tokens // 16 * (engine.executable.kv_bytes // engine.limits.kv_blocks) * len(engine.limits.windows)


def figures_of(found: FirstTokens, nbytes: int) -> dict[str, Any]:
    """Return the figures. nbytes: KV cache bytes of one prefix."""
    of_cold, of_hit, of_step, of_saved = map(statistics.median, (found.cold, found.hit, found.steps, found.saved))
    return {
        "cold_ttft_ms": 1000 * of_cold,
        "hit_ttft_ms": 1000 * of_hit,
        "saved_ttft_ms": 1000 * of_saved,
        "median_itl_ms": 1000 * of_step,
        "hit_ratio": of_cold / of_hit,
        "prefix_bytes": nbytes,
        "restore_bytes_per_s": nbytes / (of_saved - of_hit) if of_saved > of_hit else None,
    }
