"""A scheduler that has served many keeps nothing of them."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scheduler_parts import Adapters, Reference, key_of, sampled, sequence

from infeng_core.batch import Limits, RunningRequest
from infeng_core.scheduling.admission import Backlog, Bounds
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.cost import KEPT, CostModel
from infeng_core.scheduling.fcfs import FirstCome
from infeng_core.scheduling.prefix import PrefixTree
from infeng_core.scheduling.prefix_cache import PrefixCache
from infeng_core.scheduling.scheduler import Scheduler


def containers(root: Any) -> Iterator[tuple[str, int]]:
    """Give the path and the length of every container that an object of the scheduler has."""
    stack, seen = [("", root)], set()
    while stack:
        path, one = stack.pop()
        if id(one) in seen or isinstance(
            one, str | bytes | int | float | np.ndarray | memoryview | RunningRequest | type
        ):
            continue
        seen.add(id(one))
        if isinstance(one, dict | list | set | deque | tuple):
            yield path, len(one)
            stack += [(path + "[]", inner) for inner in (one.values() if isinstance(one, dict) else one)]
        slots = getattr(type(one), "__slots__", ())
        names = [*getattr(one, "__dict__", {}), *((slots,) if isinstance(slots, str) else slots)]
        stack += [(f"{path}.{name}", getattr(one, name)) for name in names if not name.startswith("__")]


def sizes(root: Any) -> dict[str, int]:
    """Return of all containers with equal paths the lengths together, but of prefixes and costs, which have bounds."""
    found: dict[str, int] = {}
    for path, length in containers(root):
        if not {"prefixes", "watcher", "_samples"} & {*path.replace("[]", "").split(".")}:
            found[path] = found.get(path, 0) + length
    return found


def serve(scheduler: Scheduler, registry: Adapters, backlog: Backlog, begin: int, count: int) -> None:
    """Let short requests come and end, by their last token, a cancel or a deadline."""
    rng = random.Random(begin)
    now = float(begin)
    for id_ in range(begin, begin + count):
        prompt = [rng.randrange(3) for _ in range(rng.choice([2, 2, 5, 30]))]
        one = sequence(id_, prompt, rng.choice([1, 1, 1, 2, 2, 2, 30]), salt=str(rng.randrange(3)))
        one.arrived, one.deadline = now, now + rng.choice([0.05, 600.0, 1e9])
        if rng.random() < 0.2:
            one.adapters = Reference(registry, (rng.choice("abcd"),), (1.0,))
        backlog.enter(id_, len(prompt))
        scheduler.add(one, now)
        if rng.random() < 0.05:
            scheduler.drop(one, now)
            backlog.leave(id_, now)
        while scheduler.waiting + scheduler.running > 30:
            now = step(scheduler, registry, backlog, now)
    while scheduler.waiting + scheduler.running:
        now = step(scheduler, registry, backlog, now)


def step(scheduler: Scheduler, registry: Adapters, backlog: Backlog, now: float) -> float:
    for one in scheduler.expired(now):
        scheduler.drop(one, now)
        backlog.leave(one.id, now)
    batch = scheduler.next_batch(now)
    for id_ in [*registry.loading]:
        registry.loaded(id_)
    if batch is None:
        return now + 0.01
    ended = [one for one in sampled(batch) if one.length + 1 == len(one.tokens)]
    tokens = [[1] for segment in batch.segments if segment.sampled]
    scheduler.commit(batch, tokens, ended, now + 0.01)
    return now + 0.01


def made(prefix: bool = True) -> tuple[Scheduler, Adapters, Backlog]:
    limits = Limits(128, 8, 8, 64, 14)
    pool = BlockPool(14)
    costs = CostModel()
    backlog = Backlog(Bounds(), costs, 128)
    scheduler = Scheduler(
        limits,
        pool,
        FirstCome(limits),
        step_seconds=0.1,
        costs=costs,
        prefixes=PrefixCache(PrefixTree(pool), key_of(limits)) if prefix else None,
        backlog=backlog,
    )
    return scheduler, Adapters(2), backlog


@pytest.mark.parametrize(
    ("prefix", "count"), [(True, 1500), (False, 750), pytest.param(True, 18_000, marks=pytest.mark.nightly)]
)
def test_nothing_that_the_scheduler_keeps_grows_with_the_requests_it_has_served(prefix, count):
    scheduler, registry, backlog = made(prefix)
    serve(scheduler, registry, backlog, 0, 1000)
    assert scheduler.preempted
    before, memory = sizes(scheduler), deep_size(scheduler)
    serve(scheduler, registry, backlog, 1000, count)
    after = sizes(scheduler)
    assert before.keys() == after.keys()
    assert all(len(size) <= KEPT for size in scheduler.costs._samples)
    assert {path: (before[path], size) for path, size in after.items() if size > before[path] + 64} == {}
    assert deep_size(scheduler) < 1.1 * memory + 4096
    assert not (scheduler._deadlines or scheduler._reached or scheduler._displaced or backlog.requests)
    assert len(scheduler.prefixes.tree) <= scheduler.pool.total
    assert len(scheduler.prefixes.tree._heap) <= scheduler.pool.total


def deep_size(root: Any) -> int:
    """Return the bytes of all containers."""
    stack, seen, total = [root], set(), 0
    while stack:
        one = stack.pop()
        if id(one) in seen or isinstance(one, RunningRequest | type):
            continue
        seen.add(id(one))
        if isinstance(one, dict | list | set | deque | tuple):
            total += sys.getsizeof(one)
            stack += [*(one.values() if isinstance(one, dict) else one)]
        stack += [*getattr(one, "__dict__", {}).values()]
    return total


def test_deadlines_of_requests_that_have_ended_do_not_pile_up():
    scheduler, _, _ = made()
    long = sequence(0, [1], 5)
    long.deadline = 1e6
    scheduler.add(long, 1.0)
    for id_ in range(1, 2000):
        one = sequence(id_, [1], 5)
        one.deadline = 2e6 - id_
        scheduler.add(one, 1.0)
        scheduler.drop(one, 1.0)
        assert len(scheduler._deadlines) <= 70
    assert scheduler.next_deadline == 1e6
    scheduler.drop(long, 1.0)
    assert len(scheduler._deadlines) == 0
