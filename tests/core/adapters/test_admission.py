"""Who starts while adapters come and go: those whose adapters are there, and nobody is passed for ever."""

from __future__ import annotations

import random

import pytest
from adapter_parts import until

from infeng_core.admission import Queue
from infeng_core.firstcome import FirstCome
from infeng_core.kvcache import BlockPool
from infeng_core.request import Request
from infeng_core.scheduler import Limits, Sequence, adapter_rows

SLOTS = 4


class Loop:
    """A scheduler over a registry, without a model; every request ends after its tokens."""

    def __init__(self, registry) -> None:
        self.registry = registry
        self.scheduler = FirstCome(Limits(64, SLOTS, SLOTS, 64, 64), BlockPool(64))
        self.started: list[Sequence] = []
        self.ids = 0

    def submit(self, adapter: str | None, new: int = 3) -> Sequence:
        self.ids += 1
        sequence = Sequence.start(self.ids, Request((1, 2), adapter=adapter), [1, 2], 2 + new, seed=0)
        if adapter is not None:
            sequence.lease = self.registry.lease(adapter)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> bool:
        while True:
            mark = self.registry.changes
            batch = self.scheduler.next_batch()
            if batch is not None or not self.scheduler.waiting or not self.registry.wait(mark):
                break
        if batch is None:
            return False
        for segment in batch.segments:
            lease = segment.sequence.lease
            used = [
                (rows.handle, rows.weight)
                for rows in batch.adapters
                if rows.row_begin <= segment.row_begin and segment.row_end <= rows.row_end
            ]
            assert used == ([] if lease is None else list(lease.rows))
        sampled = [segment.sequence for segment in batch.segments if segment.sampled]
        finished = [sequence for sequence in sampled if sequence.length + 1 == len(sequence.tokens)]
        self.started += [s.sequence for s in batch.segments if s.sequence not in self.started]
        self.scheduler.commit(batch, [[5]] * len(sampled), finished)
        return True


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [1, 2, 3])
def test_every_request_is_served_however_many_adapters_are_asked_for(make, store, most, seed):
    registry = make(most=most)
    names = [f"n{i}" for i in range(2 * most + 1)]
    for name in names:
        registry.add(name, f"org/{name}")
    choose = random.Random(seed)
    loop = Loop(registry)
    requests = [loop.submit(choose.choice([None, *names]), choose.randint(1, 9)) for _ in range(60)]
    while loop.step():
        pass
    assert sorted(s.id for s in loop.started) == [s.id for s in requests]
    assert store.most_placed <= most
    # A request is overtaken by no more than twice as many as may run together.
    started = sorted(loop.started, key=lambda sequence: sequence.started)
    for place, sequence in enumerate(started):
        later = sum(other.id > sequence.id for other in started[:place])
        assert later <= 2 * SLOTS
    assert all(info.references == info.waiting == 0 for info in registry.infos())


def test_one_whose_adapter_has_no_room_is_passed_a_bounded_number_of_times(make):
    registry = make(most=1)
    registry.add("hot", "org/hot")
    registry.add("cold", "org/cold")
    loop = Loop(registry)
    loop.submit("hot", 30)
    loop.step()
    cold = loop.submit("cold")
    for _ in range(200):  # requests for the adapter that is in memory keep coming
        loop.submit("hot", 5)
        loop.step()
        if cold in loop.started:
            break
    assert cold in loop.started
    assert loop.started.index(cold) - 1 == 2 * SLOTS, "those that passed; the first of all came before"


def test_those_whose_adapters_are_there_do_not_wait_for_a_load(make, store):
    registry = make(most=2)
    registry.add("slow", "org/slow")
    registry.add("quick", "org/quick")
    loop = Loop(registry)
    loop.submit("quick", 1)
    loop.step()
    store.gate.clear()
    slow, quick, base = loop.submit("slow"), loop.submit("quick"), loop.submit(None)
    loop.step()
    assert slow not in loop.started
    assert {quick, base} <= set(loop.started)
    store.gate.set()
    until(lambda: registry.infos()[0].state == "resident")
    while loop.step():
        pass
    assert slow in loop.started


def test_what_does_not_fit_into_the_cache_is_not_overtaken_for_its_adapter(make):
    registry = make(most=2)
    registry.add("a", "org/a")
    loop = Loop(registry)
    big = Sequence.start(100, Request((1,)), [1], 64 * 16, seed=0)
    loop.submit(None, 30)
    loop.step()
    loop.scheduler.add(big)
    small = loop.submit("a")
    loop.step()
    loop.step()
    assert small not in loop.started


def test_no_handle_outlives_its_use(make, store):
    registry = make(most=2)
    registry.add("a", "org/a")
    loop = Loop(registry)
    loop.submit("a", 2)
    while loop.step():
        pass
    loop.started.clear()
    registry.remove("a")
    assert store.placed == 0


def test_rows_of_the_same_adapters_become_one_range():
    class Lease:
        def __init__(self, *rows):
            self.rows = rows

    class Row:
        def __init__(self, lease):
            self.lease = lease

    class Piece:
        def __init__(self, begin, end, lease):
            self.row_begin, self.row_end, self.sequence = begin, end, Row(lease)

    a, b = "handle a", "handle b"
    pieces = [
        Piece(0, 1, None),
        Piece(1, 4, Lease((a, 1.0))),
        Piece(4, 5, Lease((a, 1.0))),
        Piece(5, 6, Lease((a, 0.5))),
        Piece(6, 7, None),
        Piece(7, 8, Lease((a, 1.0), (b, 2.0))),
        Piece(8, 9, Lease((a, 1.0), (b, 2.0))),
        Piece(9, 12, Lease((b, 2.0), (a, 1.0))),
    ]
    assert [tuple(rows) for rows in adapter_rows(pieces)] == [
        (1, 5, a, 1.0), (5, 6, a, 0.5), (7, 9, a, 1.0), (7, 9, b, 2.0), (9, 12, b, 2.0), (9, 12, a, 1.0)
    ]  # fmt: skip
    assert adapter_rows(pieces[:1]) == []


def test_a_queue_forgets_who_leaves_it():
    queue = Queue(patience=2)
    one, two = (Sequence.start(i, Request((1,)), [1], 4, seed=0) for i in range(2))
    for sequence in (one, two):
        queue.add(sequence)
    queue.remove(one)
    queue.remove(one)
    assert queue.take(lambda _: False) is None
    assert (queue.take(lambda _: True), len(queue)) == (two, 0)
    assert queue.take(lambda _: True) is None
