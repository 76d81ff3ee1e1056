"""TTFT of prompts whose prefix is computed, cached in memory, or saved on disk."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from infeng_bench import options
from infeng_bench.engine.place import IN_PROCESS
from infeng_bench.engine.session import alone
from infeng_bench.load.place import Place
from infeng_bench.load.prompts import random_ids
from infeng_bench.load.requests import Job
from infeng_core.api import Engine

NEW = 4  # tokens after each prompt

Open = Callable[[dict[str, object]], AbstractContextManager[Place]]
"""Settings, as in ``options.config`` -> a place with them."""


SHOWN = {
    "median_itl_ms": ("time between tokens, median ms", 1.0),
    "cold_ttft_ms": ("first token computed, ms", 1.0),
    "hit_ttft_ms": ("beginning in memory, ms", 1.0),
    "hit_ratio": ("computed over in memory", 1.0),
    "saved_ttft_ms": ("beginning on disk, after a restart, ms", 1.0),
    "prefix_bytes": ("the beginning's cache, MB", 1e-6),
    "restore_bytes_per_s": ("from disk, GB/s", 1e-9),
}
"""The figures of a printed table, as in ``options.listed``."""


@dataclass
class FirstTokens:
    """TTFT in seconds by where the prefix comes from."""

    cold: list[float] = field(default_factory=list)  # computed
    hit: list[float] = field(default_factory=list)  # in memory
    saved: list[float] = field(default_factory=list)  # on disk
    steps: list[float] = field(default_factory=list)  # seconds of a decode step after the first token
    saved_bytes: int = 0

    def figures(self, nbytes: int) -> dict[str, Any]:
        """Return the figures. nbytes: KV cache bytes of one prefix."""
        of_cold, of_hit, of_step, of_saved = map(statistics.median, (self.cold, self.hit, self.steps, self.saved))
        return {
            "cold_ttft_ms": 1000 * of_cold,
            "hit_ttft_ms": 1000 * of_hit,
            "saved_ttft_ms": 1000 * of_saved,
            "median_itl_ms": 1000 * of_step,
            "hit_ratio": of_cold / of_hit,
            "prefix_bytes": nbytes,
            "restore_bytes_per_s": nbytes / (of_saved - of_hit) if of_saved > of_hit else None,
        }


def measured(opened: Open, shared: int, tail: int, count: int, seed: int) -> FirstTokens:
    """Measure ``count`` prefixes of ``shared`` tokens, each with tails of ``tail`` tokens.

    A first place computes each prefix with a tail and finds it in memory with two others; a second one, which is opened
    with the same settings after the first has ended, finds it on disk.
    """
    found = FirstTokens()
    with tempfile.TemporaryDirectory(prefix="infeng-prefix-") as folder:
        cache: dict[str, object] = {"kv_cache__prefix": True, "kv_cache__prefix_dir": folder}
        settings = {**cache, "scheduler__step_ms": 0}
        with opened(settings) as place:
            prompts = [random_ids(shared, seed + k, 0, place.vocab) for k in range(count)]
            tails = [random_ids(tail, seed, 1 + k, place.vocab) for k in range(3)]
            for prompt in options.progress(prompts, "prefix"):
                found.cold.append(_first(place, prompt + tails[0])[0])
                for end in tails[1:]:
                    seconds, each = _first(place, prompt + end)
                    found.hit.append(seconds)
                    found.steps.append(each)
        found.saved_bytes = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        with opened(settings) as place:
            _first(place, tails[0])
            found.saved += [_first(place, prompt + tails[1])[0] for prompt in prompts]
    return found


def in_process(
    arguments: argparse.Namespace, shared: int, tail: int, count: int, kind: str
) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Return the figures of engines of this process, the record of the run, and the vocabulary. kind: of the record."""
    records: list[dict[str, Any]] = []
    nbytes = vocab = 0

    @contextlib.contextmanager
    def opened(settings: dict[str, object]) -> Iterator[Place]:
        nonlocal nbytes, vocab
        with alone(arguments, settings) as sides, sides.places[IN_PROCESS]() as place:
            yield place
            nbytes, vocab = _cached_bytes(sides.session.engine, shared), place.vocab
            records.append(sides.session.record(kind, {}, seed=arguments.seed))

    found = measured(opened, shared, tail, count, arguments.seed)
    return found.figures(nbytes), records[-1], vocab


def _first(place: Place, ids: list[int]) -> tuple[float, float]:
    """Return the seconds to the first token after ``ids``, and the median of the next ones."""
    reply = place.whole(Job(0.0, ids, NEW))
    gaps = [late - early for early, late in pairwise(reply.times)]
    return reply.times[0] - reply.sent, statistics.median(gaps or [0.0])


def _cached_bytes(engine: Engine, tokens: int) -> int:
    """Return the bytes of the whole KV blocks of ``tokens``."""
    return tokens // 16 * (engine.executable.kv_bytes // engine.limits.kv_blocks) * len(engine.limits.windows)
