"""What the scheduler costs of a step: thread time of ``next_batch`` and ``commit``, no model."""

from __future__ import annotations

import time
from typing import Any

import pytest

from infeng_core.batch import Limits, RunningRequest
from infeng_core.requests.request import Request
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.fcfs import FirstCome
from infeng_core.scheduling.prefix import PrefixTree
from infeng_core.scheduling.prefix_cache import PrefixCache
from infeng_core.scheduling.scheduler import Scheduler

CONTEXT = 1 << 20
"""So long that no request ends."""


class Steps:
    """Steps of requests that decode, and take a block each in every 16th."""

    def __init__(self, running: int, waiting: int, step_seconds: float | None) -> None:
        """Start those that run, and let others wait for a slot."""
        limits = Limits(512, running, running, CONTEXT, running * 4096)
        pool = BlockPool(limits.kv_blocks)
        self.scheduler = Scheduler(
            limits,
            pool,
            FirstCome(limits),
            step_seconds=step_seconds,
            prefixes=PrefixCache(PrefixTree(pool), lambda sequence: b"all"),
        )
        self.now = 0.0
        for id_ in range(running + waiting):
            prompt = [id_ % 100] * 100
            sequence = RunningRequest.start(id_, Request(tuple(prompt)), prompt, 60_000, 0)
            sequence.arrived = float(id_)
            self.scheduler.add(sequence, self.now)
        while self.scheduler.running < running or self.scheduler._prompts:
            self()

    def __call__(self) -> None:
        """Take a step."""
        batch = self.scheduler.next_batch(self.now)
        assert batch is not None
        self.now += 0.03 + 0.001 * len(batch.tokens)
        self.scheduler.commit(batch, [[1]] * len(batch.sample_rows), (), self.now)


@pytest.mark.parametrize(("running", "waiting"), [(1, 0), (32, 0), (32, 1000)])
@pytest.mark.parametrize("step_seconds", [None, 0.1], ids=["all", "timed"])
def test_a_step(benchmark: Any, running: int, waiting: int, step_seconds: float | None) -> None:
    """16 steps, in one of which everybody takes a block; ``extra_info`` has microseconds of the best, each."""
    steps = Steps(running, waiting, step_seconds)
    spent: list[int] = []

    def sixteen() -> None:
        begin = time.thread_time_ns()
        for _ in range(16):
            steps()
        spent.append(time.thread_time_ns() - begin)

    benchmark.pedantic(sixteen, rounds=100, warmup_rounds=5)
    benchmark.extra_info["us_per_step"] = min(spent) / 16e3
