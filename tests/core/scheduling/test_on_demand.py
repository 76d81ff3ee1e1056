"""Blocks are allocated as sequences grow and freed when they run out; time bounds the prompts' part of a step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from scheduler_parts import Adapters, Reference

from infeng_core.batch import Batch, Limits, RunningRequest
from infeng_core.errors import PluginError
from infeng_core.requests.request import Request
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.cost import CostModel, StepShape
from infeng_core.scheduling.fcfs import FirstCome
from infeng_core.scheduling.policy import Policy, Served
from infeng_core.scheduling.prefix import PrefixTree
from infeng_core.scheduling.prefix_cache import PrefixCache
from infeng_core.scheduling.scheduler import MOST_DISPLACED, Scheduler
from infeng_core.scheduling.step_budget import LEAST_CHUNK, UNKNOWN_CHUNK, StepBudget


def sequence(id_: int, prompt: int, new: int, priority: int = 0) -> RunningRequest:
    ids = [(7 * id_ + i) % 100 for i in range(prompt)]
    made = RunningRequest.start(id_, Request(tuple(ids), priority=priority), ids, prompt + new, seed=0)
    made.arrived = float(id_)
    return made


def make(blocks: int = 8, rows: int = 64, running: int = 4, policy: type[Policy] = FirstCome, **more) -> Scheduler:
    limits = Limits(rows, running, running, 128, blocks)
    return Scheduler(limits, BlockPool(blocks), policy(limits), **more)


def step(scheduler: Scheduler, now: float = 0.0, took: float = 0.0) -> Batch | None:
    """Run a step that gives each sampled sequence the token 1."""
    batch = scheduler.next_batch(now)
    if batch is not None:
        sampled = [segment.sequence for segment in batch.segments if segment.sampled]
        ended = [one for one in sampled if one.length + 1 == len(one.tokens)]
        scheduler.commit(batch, [[1]] * len(sampled), ended, now + took)
    return batch


def test_a_sequence_takes_blocks_as_it_grows_and_not_for_what_it_may_become():
    scheduler = make()
    one = sequence(0, 16, 100)
    scheduler.add(one, 0.0)
    held = []
    while step(scheduler) is not None:
        held.append(len(one.blocks))
    assert held[:18] == [1] + [2] * 16 + [3]
    assert max(held) == 8
    assert scheduler.pool.free == 8


def test_without_free_blocks_the_latest_sequence_is_preempted_and_keeps_its_tokens():
    scheduler = make(blocks=5)
    first, second = sequence(0, 20, 28), sequence(1, 20, 28)
    for one in (first, second):
        scheduler.add(one, 0.0)
    steps, order = 0, []
    while (batch := step(scheduler)) is not None:
        steps += 1
        order.append([segment.sequence.id for segment in batch.segments])
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert second.started == 0.0
    assert scheduler.preempted == 1
    assert first.length == second.length == 48
    assert scheduler.pool.free == 5
    assert order[0] == [0, 1]
    assert [0] in order, "one runs alone while the other waits"
    assert order[-1] == [1]


def test_tokens_that_were_computed_twice_are_counted_once():
    told: list[Served] = []

    class Told(FirstCome):
        def served(self, work: Iterable[Served], now: float) -> None:
            told.extend(work)

    scheduler = make(blocks=5, policy=Told)
    requests = [sequence(0, 20, 28), sequence(1, 20, 28)]
    for one in requests:
        scheduler.add(one, 0.0)
    while step(scheduler) is not None:
        pass
    assert scheduler.preempted
    for one in requests:
        mine = [work for work in told if work.request is one]
        assert (sum(work.prompt_rows for work in mine), sum(work.new_tokens for work in mine)) == (20, 28)


@pytest.mark.parametrize("seconds", [0.03, 0.1, 0.5, None])
def test_prompts_get_only_rows_that_keep_the_step_time_of_decoding_requests(seconds):
    costs = CostModel(
        {**dict.fromkeys(CostModel().names, 0.004), "fixed": 0.02, "attended": 1e-6, "sampled": 0.0, "adapters": 0.0}
    )
    limits = Limits(256, 4, 4, 4096, 1024)
    scheduler = Scheduler(limits, BlockPool(1024), FirstCome(limits), step_seconds=seconds, costs=costs)
    for id_ in (0, 1):
        scheduler.add(sequence(id_, 4, 1000), 0.0)
    step(scheduler)
    scheduler.add(sequence(2, 2000, 5), 0.0)
    rows = []
    while (batch := step(scheduler)) is not None and len(batch.segments) == 3 and batch.segments[-1].pos0 < 2000:
        rows.append(len(batch.tokens) - 2)
        attended = sum((s.row_end - s.row_begin) * s.pos0 + (s.row_end - s.row_begin) ** 2 / 2 for s in batch.segments)
        spent = costs.seconds(StepShape(len(batch.tokens), 2, int(attended)))
        assert seconds is None or spent <= seconds * 1.01 or rows[-1] == LEAST_CHUNK
    expected = {0.03: LEAST_CHUNK, 0.1: 17, 0.5: 116, None: 254}[seconds]
    assert rows[0] == expected
    assert sum(rows) == 2000


def test_before_costs_are_known_prompts_get_few_rows_beside_decoding_requests():
    limits = Limits(256, 4, 4, 4096, 1024)
    scheduler = Scheduler(limits, BlockPool(1024), FirstCome(limits), step_seconds=0.1)
    scheduler.add(sequence(0, 300, 9), 0.0)
    assert len(scheduler.next_batch(0.0).tokens) == 256, "no request decodes"
    step(scheduler)
    step(scheduler)
    scheduler.add(sequence(1, 300, 9), 0.0)
    assert len(scheduler.next_batch(0.0).tokens) == 1 + UNKNOWN_CHUNK


def test_a_request_past_its_deadline_is_returned_once_waiting_or_running():
    scheduler = make(running=1)
    runs, waits, ends, lasts = (sequence(i, 4, 20) for i in range(4))
    runs.deadline, waits.deadline, ends.deadline = 5.0, 4.0, 3.0
    for one in (runs, waits, ends, lasts):
        scheduler.add(one, 0.0)
    step(scheduler)
    scheduler.drop(ends, 1.0)
    assert scheduler.expired(2.0) == []
    assert scheduler.expired(4.0) == [waits]
    assert scheduler.expired(9.0) == [runs]
    assert scheduler.expired(9.0) == []
    assert lasts.deadline == math.inf


class Urgent(FirstCome):
    """Lets requests of higher priority take the place of others."""

    def order(self, now: float) -> list[RunningRequest]:
        return sorted(super().order(now), key=lambda one: -one.request.priority)

    def displaced(self, request: RunningRequest, running: list[RunningRequest], now: float) -> RunningRequest | None:
        lowest = min(running, key=lambda one: one.request.priority)
        return lowest if lowest.request.priority < request.request.priority else None


@pytest.mark.parametrize("blocks", [3, 64])
def test_a_policy_may_preempt_a_running_request_for_a_waiting_one(blocks):
    scheduler = make(blocks=blocks, running=1 if blocks == 64 else 4, policy=Urgent)
    slow = sequence(0, 20, 20)
    scheduler.add(slow, 0.0)
    step(scheduler)
    for id_ in range(1, MOST_DISPLACED + 2):
        quick = sequence(id_, 20, 2, priority=1)
        scheduler.add(quick, 0.0)
        batch = step(scheduler)
        runs_first = [segment.sequence.id for segment in batch.segments] == [id_]
        assert runs_first == (id_ <= MOST_DISPLACED), "no request is displaced for ever"
        if runs_first:
            while quick.length < 22:
                step(scheduler)
            step(scheduler)
            assert slow in scheduler._running
    while step(scheduler) is not None:
        pass
    assert slow.length == 40


@pytest.mark.parametrize(
    ("method", "result", "message"),
    [
        ("order", lambda self, now: [sequence(9, 1, 1)], "order.. names requests that do not wait"),
        ("order", lambda self, now: (1 // 0 for _ in range(3)), "order.. raised ZeroDivisionError"),
        ("victim", lambda self, running, now: sequence(9, 1, 1), "preempts a request that does not run"),
        ("prompts", lambda self, running, now: [*running, *running], "prompts.. names others than it was given"),
    ],
)
def test_a_policy_with_invalid_answers_is_named(method, result, message):
    scheduler = make(blocks=5, policy=type("Odd", (FirstCome,), {method: result}), rows=24)
    for id_ in (0, 1, 2):
        scheduler.add(sequence(id_, 20, 28), 0.0)
    with pytest.raises(PluginError, match=message):
        while step(scheduler) is not None:
            pass


def test_a_displaced_request_that_restarts_in_the_same_step_has_its_rows_once():
    class Back(FirstCome):
        """Sends the other away and then lets it go first."""

        def order(self, now: float) -> Iterable[RunningRequest]:
            return sorted(super().order(now), key=lambda one: (one.preemptions == 0, one.id))

        def displaced(
            self, request: RunningRequest, running: Iterable[RunningRequest], now: float
        ) -> RunningRequest | None:
            return next((one for one in running if one.id == 0), None)

    scheduler = make(running=1, policy=Back)
    first, second = sequence(0, 16, 8), sequence(1, 16, 8)
    scheduler.add(first, 0.0)
    step(scheduler)
    step(scheduler)
    scheduler.add(second, 1.0)
    batch = step(scheduler, 1.0)
    assert first.preemptions > 0
    assert [(segment.sequence, segment.row_end - segment.row_begin) for segment in batch.segments] == [(first, 18)]
    while step(scheduler, 2.0) is not None:
        pass
    assert (first.length, second.length) == (24, 24)


def test_a_held_back_request_is_considered_again_without_other_changes():
    class Later(FirstCome):
        def order(self, now: float) -> Iterable[RunningRequest]:
            return super().order(now) if now >= 5.0 else []

    scheduler = make(policy=Later)
    scheduler.add(sequence(0, 4, 2), 0.0)
    assert step(scheduler, 0.0) is None
    assert step(scheduler, 4.0) is None
    assert step(scheduler, 5.0) is not None


def test_a_policy_may_ask_how_much_of_a_request_is_cached():
    found: list[int] = []

    class Asking(FirstCome):
        def attach(self, cached):
            self.cached = cached

        def order(self, now: float) -> Iterable[RunningRequest]:
            found.extend(self.cached(one) for one in super().order(now))
            return super().order(now)

    pool = BlockPool(8)
    limits = Limits(64, 4, 4, 128, 8)
    scheduler = Scheduler(limits, pool, Asking(limits), prefixes=PrefixCache(PrefixTree(pool), lambda one: b"k"))
    for id_ in (0, 7):
        one = RunningRequest.start(id_, Request((1,) * 40), [1] * 40, 42, seed=0)
        scheduler.add(one, 0.0)
        while step(scheduler) is not None:
            pass
        assert (one.cached > 0) == (id_ == 7)
    assert set(found) == {0, one.cached}


def test_room_for_prompts_counts_the_runs_of_rows_between_which_adapters_begin():
    registry = Adapters(4)
    registry.resident = dict.fromkeys(registry.names.values(), 0)
    budget = StepBudget(StepShape(0, 0, 0), 64, 4, CostModel(), None)
    ranges = []
    for id_, firsts in enumerate([None, None, (0, 10), (5, 5)]):
        one = sequence(id_, 16, 4)
        one.adapters = Reference(registry, ("a", "b"), (1.0, 1.0), firsts)
        assert one.adapters.acquire()
        assert budget.take(one, 4) == 16
        ranges.append(budget.shape.adapters)
    assert ranges == [2, 2, 2 + 1 + 2, 5 + 2]
