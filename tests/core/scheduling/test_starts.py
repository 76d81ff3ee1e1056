"""Who starts, when, and with what: the corners that random loads rarely reach."""

from __future__ import annotations

import weakref

import pytest
from scheduler_parts import Adapters, Reference, check, key_of, linear, sampled, sequence

from infeng_core.batch import Batch, Limits, RunningRequest
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.cost import StepShape
from infeng_core.scheduling.fcfs import FirstCome
from infeng_core.scheduling.policy import Policy
from infeng_core.scheduling.prefix import PrefixTree
from infeng_core.scheduling.prefix_cache import PrefixCache
from infeng_core.scheduling.scheduler import MOST_DISPLACED, Scheduler
from infeng_core.scheduling.step_budget import LEAST_CHUNK

SLOTS = 4


def make(blocks: int = 16, rows: int = 64, running: int = SLOTS, policy: type[Policy] = FirstCome, **more) -> Scheduler:
    limits = Limits(rows, running, running, 256, blocks)
    return Scheduler(limits, BlockPool(blocks), policy(limits), **more)


def step(scheduler: Scheduler, now: float = 1.0) -> Batch | None:
    batch = scheduler.next_batch(now)
    if batch is not None:
        check(batch, scheduler._limits)
        ended = [one for one in sampled(batch) if one.length + 1 == len(one.tokens)]
        scheduler.commit(batch, [[1] * (s.sampled > s.known) for s in batch.segments if s.sampled], ended, now)
    return batch


def test_whoever_starts_beside_a_reported_prompt_finds_a_sampled_row_left():
    scheduler = make()
    first, second = sequence(0, [0] * 9, 5), sequence(1, [0] * 9, 5)
    first.report_from = 0
    for one in (first, second):
        scheduler.add(one, 1.0)
    found = []
    while (batch := step(scheduler)) is not None:
        found.append([(g.sequence.id, g.row_end - g.row_begin, g.sampled) for g in batch.segments])
    assert found[:3] == [[(0, 4, 4)], [(0, 4, 4)], [(0, 1, 1), (1, 9, 1)]]
    assert first.length == second.length == 14


class Waver(FirstCome):
    """Lets the second displace the first, and then prefers the first."""

    def order(self, now: float) -> list[RunningRequest]:
        return sorted(self._waiting, key=lambda one: -one.preemptions * 10 - one.id)

    def displaced(self, request: RunningRequest, running: list[RunningRequest], now: float) -> RunningRequest | None:
        return running[0] if request.id == 1 else None


def test_one_that_is_displaced_and_starts_again_in_one_step_has_its_rows_once():
    scheduler = make(running=1, rows=64, policy=Waver)
    first, second = sequence(0, [0] * 9, 20), sequence(1, [0] * 4, 20)
    scheduler.add(first, 1.0)
    step(scheduler)
    scheduler.add(second, 1.0)
    batch = step(scheduler)
    assert first.preemptions == MOST_DISPLACED
    assert [(g.sequence.id, g.row_end - g.row_begin) for g in batch.segments] == [(0, 10)]
    while step(scheduler) is not None:
        pass
    assert (first.length, second.length) == (29, 24)


class Urgent(FirstCome):
    """Lets whoever has adapters take the place of others."""

    def displaced(self, request: RunningRequest, running: list[RunningRequest], now: float) -> RunningRequest | None:
        return running[0] if request.adapters is not None else None


def test_an_adapter_that_leaves_as_somebody_was_displaced_for_it_is_no_fault_of_the_policy():
    scheduler = make(blocks=3, policy=Urgent)
    registry = Adapters(1, resident={"c0": 0})
    slow, other, urgent = sequence(0, [0] * 20, 20), sequence(1, [0] * 20, 20), sequence(2, [0] * 20, 20)
    urgent.adapters = Reference(registry, ("a",), (1.0,))
    urgent.arrived = 0.5
    for one in (slow, other):
        scheduler.add(one, 1.0)
    step(scheduler)
    scheduler.add(urgent, 1.0)
    registry.vanishes = True
    assert [g.sequence.id for g in step(scheduler).segments] == [0], "it starts again"
    assert slow.preemptions == 1
    registry.loaded("c0")
    assert [g.sequence.id for g in step(scheduler).segments] == [2]
    while step(scheduler) is not None:
        pass
    assert (slow.length, other.length, urgent.length) == (40, 40, 40)


class Narrow(FirstCome):
    """Lets one request have rows, the last, which makes room for others."""

    def active(self, running: list[RunningRequest], now: float) -> list[RunningRequest]:
        return running[-1:]

    def displaced(self, request: RunningRequest, running: list[RunningRequest], now: float) -> RunningRequest | None:
        return next((one for one in running if one.id == 1), None)


def test_where_all_that_were_active_made_room_in_vain_others_have_their_turn():
    scheduler = make(blocks=5, policy=Narrow)
    first, second, large = (sequence(id_, [0] * prompt, 10) for id_, prompt in enumerate([20, 4, 60]))
    large.arrived = -1.0
    for one in (first, second):
        scheduler.add(one, 1.0)
        step(scheduler)
    scheduler.add(large, 1.0)
    assert [g.sequence.id for g in step(scheduler).segments] == [0]
    assert second.preemptions == 1
    while step(scheduler) is not None:
        pass
    assert (first.length, second.length, large.length) == (30, 14, 70)


class Evening(FirstCome):
    """Holds everybody back until it is late."""

    def order(self, now: float) -> list[RunningRequest]:
        return self._waiting if now > 5.0 else []


def test_a_policy_that_holds_somebody_back_is_asked_again():
    scheduler = make(policy=Evening)
    scheduler.add(sequence(0, [0] * 4, 4), 1.0)
    assert step(scheduler, 2.0) is None
    assert step(scheduler, 6.0) is not None


class Yielding(FirstCome):
    """Lets all that run make way for the first that waits, once in a step."""

    asked = 0.0

    def active(self, running: list[RunningRequest], now: float) -> list[RunningRequest]:
        is_first, self.asked = now > self.asked, now
        return [] if self._waiting and is_first else running


@pytest.mark.parametrize("blocks", [3, 16])
def test_those_that_made_way_for_one_that_cannot_start_have_their_turn(blocks: int):
    scheduler = make(blocks=blocks, policy=Yielding)
    for id_ in (0, 1):
        scheduler.add(sequence(id_, [0] * 40, 4), 1.0)
        batch = step(scheduler, 2.0 + id_)
        assert [segment.sequence.id for segment in batch.segments] == [id_ if blocks == 16 else 0]


def test_what_another_has_computed_meanwhile_may_make_room_for_one_that_found_none():
    limits = Limits(16, 4, 4, 256, 6)
    pool = BlockPool(6)
    scheduler = Scheduler(limits, pool, FirstCome(limits), prefixes=PrefixCache(PrefixTree(pool), key_of(limits)))
    first, second = sequence(0, [0] * 60, 10), sequence(1, [0] * 60, 10)
    for one in (first, second):
        scheduler.add(one, 1.0)
    for _ in range(4):
        step(scheduler)
    assert first.length == 61
    step(scheduler)
    assert [*scheduler._running] == [first, second], "48 tokens are shared, two blocks are left"


def test_who_has_started_at_the_beginning_of_time_starts_once():
    scheduler = make(blocks=5)
    for id_ in (0, 1):
        scheduler.add(sequence(id_, [0] * 20, 28), 0.0)
    second = list(scheduler._waiting)[1]
    step(scheduler, 0.0)
    while not second.preemptions or second not in scheduler._running:
        step(scheduler, 7.0)
    assert second.started == 0.0


@pytest.mark.parametrize("hot", [None, "a"])
def test_one_whose_adapter_lacks_room_is_overtaken_by_twice_as_many_as_may_run(hot):
    scheduler = make()
    registry = Adapters(1, resident={"c0": 0})

    def submit(id_: int, name: str | None, new: int) -> RunningRequest:
        one = sequence(id_, [0] * 2, new)
        one.adapters = None if name is None else Reference(registry, (name,), (1.0,))
        scheduler.add(one, 1.0)
        return one

    submit(0, "a", 100)
    step(scheduler)
    cold, others = submit(1, "b", 1), []
    for id_ in range(2, 50):
        others.append(submit(id_, hot, 1))
        step(scheduler)
    assert sum(one.started > 0 for one in others) == 2 * SLOTS
    while scheduler.running:
        step(scheduler)
    step(scheduler)
    assert registry.loading == ["c1"]
    registry.loaded("c1")
    assert step(scheduler).segments[0].sequence is cold


def test_chunks_and_their_adapters_leave_those_that_decode_their_pace():
    costs = linear(0.01, 0.001, attended=1e-5, adapters=0.01)
    limits = Limits(256, 8, 8, 2048, 1024)
    scheduler = Scheduler(limits, BlockPool(1024), FirstCome(limits), step_seconds=0.1, costs=costs)
    registry = Adapters(4, resident={"c0": 0, "c1": 0, "c2": 0})

    def submit(id_: int, name: str, prompt: int) -> None:
        one = sequence(id_, [0] * prompt, 900)
        one.adapters = Reference(registry, (name,), (1.0,))
        scheduler.add(one, 1.0)

    for id_, name in enumerate("ab"):
        submit(id_, name, 4)
    step(scheduler)
    for id_, name in enumerate("cacab", 2):
        submit(id_, name, 150 if id_ == 4 else 20)
    seen = []
    while scheduler._prompts or scheduler.waiting:
        batch = step(scheduler)
        attended = sum((g.row_end - g.row_begin) * (g.pos0 + (g.row_end - g.row_begin) / 2) for g in batch.segments)
        shape = StepShape(len(batch.tokens), 0, int(attended), len(batch.adapters))
        seen.append(costs.seconds(shape))
        assert seen[-1] <= 0.1 or len(batch.tokens) - 2 <= LEAST_CHUNK + SLOTS
    assert max(seen) > 0.09


class Handle:
    """An adapter in memory."""


def test_no_handle_outlives_its_use():
    scheduler = make()
    one = sequence(0, [0] * 4, 4)
    one.adapters = Reference(Adapters(1, resident={"c0": 0}), ("a",), (1.0,))
    scheduler.add(one, 1.0)
    step(scheduler)
    handle = Handle()
    seen = weakref.ref(handle)
    one.adapters.rows = ((handle, 1.0),)
    del handle
    while step(scheduler) is not None:
        pass
    assert seen() is None


class Quick(Adapters):
    """A load ends while the scheduler still looks at who waits."""

    def prefetch(self, references):
        served = super().prefetch(references)
        for id_ in list(self.loading):
            self.loaded(id_)
        return served


def test_a_load_that_ends_while_the_queue_is_looked_at_is_not_missed():
    scheduler = make()
    one = sequence(0, [0] * 4, 2)
    one.adapters = Reference(Quick(1), ("a",), (1.0,))
    scheduler.add(one, 1.0)
    assert step(scheduler) is None  # it was not there when it was asked for
    assert step(scheduler) is not None
