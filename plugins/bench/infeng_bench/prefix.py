"""`infeng bench prefix`: how soon a first token comes when a prompt's beginning is in memory, or saved."""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from infeng_bench import options
from infeng_bench.prompts import random_ids
from infeng_bench.running import greedy
from infeng_bench.session import opened
from infeng_core.api import Engine

NAME = "prefix"
HELP = "measure shared beginnings of prompts: first token computed, from memory, from disk"

ROUNDS = 4


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--prompt", type=options.positive, default=1024, metavar="N", help="tokens shared (1024)")
    parser.add_argument("--tail", type=options.positive, default=1, metavar="N", help="tokens after them (1)")
    options.add_measurement(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Measure one engine, and another one that starts with what the first has saved; print and write."""
    shared, tail = arguments.prompt, arguments.tail
    cold, hit, step, saved = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="infeng-prefix-") as folder:
        as_served: dict[str, object] = {"kv_cache__prefix": True, "kv_cache__prefix_dir": folder}
        with opened(arguments, **as_served) as session:
            engine = session.engine
            vocab = engine.model.config.vocab
            prompts = [random_ids(shared, arguments.seed + k, 0, vocab) for k in range(arguments.rounds)]
            tails = [random_ids(tail, arguments.seed, 1 + k, vocab) for k in range(3)]
            for prompt in options.progress(prompts, NAME):
                cold.append(_first(engine, prompt + tails[0])[0])
                for end in tails[1:]:
                    first, each = _first(engine, prompt + end)
                    hit.append(first)
                    step.append(each)
            nbytes = _cached_bytes(engine, shared)
        with opened(arguments, **as_served) as session:
            _first(session.engine, tails[0])
            saved = [_first(session.engine, prompt + tails[1])[0] for prompt in prompts]
            figures = _figures(cold, hit, step, saved, nbytes)
            record = session.record(NAME, figures, seed=arguments.seed, rounds=arguments.rounds)
    record |= {"prompt": shared, "tail": tail}
    options.deliver(record, arguments, options.columns(_table(record)))
    return 0


def _first(engine: Engine, ids: list[int]) -> tuple[float, float]:
    """Return the seconds to the first token after ``ids``, and the median of the next three."""
    stream = engine.submit(ids, greedy(4))
    times = [time.perf_counter()]
    times.extend(time.perf_counter() for _ in stream)
    first, *others = (after - before for before, after in itertools.pairwise(times))
    return first, statistics.median(others)


def _cached_bytes(engine: Engine, tokens: int) -> int:
    """Return the bytes of the cache that hold the whole blocks of ``tokens``."""
    return tokens // 16 * (engine.executable.kv_bytes // engine.limits.kv_blocks) * len(engine.limits.windows)


def _figures(cold: list[float], hit: list[float], step: list[float], saved: list[float], nbytes: int) -> dict[str, Any]:
    of_cold, of_hit, of_step, of_saved = (statistics.median(times) for times in (cold, hit, step, saved))
    return {
        "cold_ttft_ms": 1000 * of_cold,
        "hit_ttft_ms": 1000 * of_hit,
        "saved_ttft_ms": 1000 * of_saved,
        "median_itl_ms": 1000 * of_step,
        "hit_ratio": of_cold / of_hit,
        "prefix_bytes": nbytes,
        "restore_bytes_per_s": nbytes / (of_saved - of_hit) if of_saved > of_hit else None,
    }


def _table(figures: dict[str, Any]) -> Iterator[list[str]]:
    yield ["first token computed, ms", f"{figures['cold_ttft_ms']:.1f}"]
    yield ["beginning in memory, ms", f"{figures['hit_ttft_ms']:.1f}", f"1/{figures['hit_ratio']:.0f}"]
    yield ["beginning on disk, ms", f"{figures['saved_ttft_ms']:.1f}", f"{figures['prefix_bytes'] / 1e6:.1f} MB"]
    yield ["a step after it, ms", f"{figures['median_itl_ms']:.1f}"]
    if figures["restore_bytes_per_s"]:
        yield ["from disk, GB/s", f"{figures['restore_bytes_per_s'] / 1e9:.2f}"]
