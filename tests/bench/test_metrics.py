"""What metrics cost the event loop: they are told of each token of each stream."""

from __future__ import annotations

import time
from typing import Any

import infeng_demo
from infeng_serve.observability.metrics import Metrics
from infeng_serve.observers import Record

from infeng_core.api import Engine

TOKENS = 500


def test_a_token(benchmark: Any) -> None:
    """One of 500; ``extra_info`` has microseconds of the best round, each, of which there shall be two at most."""
    record = Record("r1", "/v1/completions", "acme", "demo", wall=1.0, arrived=100.0, submitted=100.1)
    spent: list[int] = []
    with Engine(infeng_demo.model_dir(), threads=1, overrides={"kv_cache.memory": "8MB"}) as engine:
        metrics = Metrics(engine, "demo")
        metrics.accepted(record)

        def observe() -> None:
            begin = time.thread_time_ns()
            for number in range(TOKENS):
                metrics.tokens(record, 1, 102.33 + number)
            spent.append(time.thread_time_ns() - begin)

        benchmark.pedantic(observe, rounds=20, warmup_rounds=2)
    benchmark.extra_info["us_per_token"] = min(spent) / 1e3 / TOKENS
