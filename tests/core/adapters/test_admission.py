"""The start of requests while adapters are loaded and evicted: resident adapters start first, and no request
starves."""

from __future__ import annotations

import random
import re

import pytest
from adapter_parts import info, until

from infeng_core.batch import Limits, RunningRequest, Segment, adapter_rows
from infeng_core.errors import AdapterError
from infeng_core.requests.request import Request
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.fcfs import FirstCome
from infeng_core.scheduling.scheduler import Scheduler
from infeng_core.scheduling.waiting import LOOKAHEAD

SLOTS = 4


class Loop:
    """A scheduler over a registry, without a model; every request ends after its tokens."""

    def __init__(self, registry) -> None:
        self.registry = registry
        limits = Limits(64, SLOTS, SLOTS, 64 * 16, 64)
        self.scheduler = Scheduler(limits, BlockPool(64), FirstCome(limits))
        self.now = 0.0
        self.started: list[RunningRequest] = []
        self.ids = 0

    def submit(self, adapter: str | None, new: int = 3) -> RunningRequest:
        self.ids += 1
        sequence = RunningRequest.start(self.ids, Request((1, 2), adapter=adapter), [1, 2], 2 + new, seed=0)
        if adapter is not None:
            sequence.adapters = self.registry.refer(adapter)
        self.scheduler.add(sequence, self.now)
        return sequence

    def wait_for_loads(self) -> None:
        self.scheduler._waiting.prefetch(self.now)
        until(lambda: not any(info.state == "loading" for info in self.registry.infos()))

    def step(self) -> bool:
        while True:
            mark = self.registry.changes
            self.now += 1.0
            batch = self.scheduler.next_batch(self.now)
            if batch is not None or not self.scheduler.waiting or not self.registry.wait(mark):
                break
        if batch is None:
            return False
        for segment in batch.segments:
            reference = segment.sequence.adapters
            used = [
                (rows.handle, rows.weight)
                for rows in batch.adapters
                if rows.row_begin <= segment.row_begin and segment.row_end <= rows.row_end
            ]
            assert used == ([] if reference is None else list(reference.rows))
        sampled = [segment.sequence for segment in batch.segments if segment.sampled]
        finished = [sequence for sequence in sampled if sequence.length + 1 == len(sequence.tokens)]
        self.started += [s.sequence for s in batch.segments if s.sequence not in self.started]
        self.scheduler.commit(batch, [[5]] * len(sampled), finished, self.now)
        return True


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [1, 2, 3])
def test_every_request_is_served_with_any_number_of_adapters(make, store, most, seed):
    registry = make(most=most)
    names = [f"n{i}" for i in range(2 * most + 1)]
    for name in names:
        registry.add(name, f"org/{name}")
    choose = random.Random(seed)
    loop = Loop(registry)
    requests = [loop.submit(choose.choice([None, *names]), choose.randint(1, 9)) for _ in range(60)]
    loop.wait_for_loads()
    while loop.step():
        loop.wait_for_loads()
    assert sorted(s.id for s in loop.started) == [s.id for s in requests]
    assert store.most_placed <= most
    # While nothing is being loaded, a request is overtaken by no more than twice as many as may run together.
    started = loop.started
    for place, sequence in enumerate(started):
        later = sum(other.id > sequence.id for other in started[:place])
        assert later <= 2 * SLOTS
    assert all(info.references == info.waiting == 0 for info in registry.infos())


def test_a_request_whose_adapter_has_no_room_is_overtaken_a_bounded_number_of_times(make):
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
    assert loop.started.index(cold) - 1 == 2 * SLOTS, "overtaking requests; the first one came before"


def test_requests_with_resident_adapters_do_not_wait_for_a_load(make, store):
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


def slow_and_others(make, store, slow: int = 1, **more):
    """Return a loop over adapters of which the slow ones are not read before the gate opens."""
    registry = make(**{"most": 8, **more})
    for name in [f"slow{i}" for i in range(slow)] + ["quick", "other"]:
        registry.add(name, f"org/{name}")
    loop = Loop(registry)
    loop.submit("quick", 1)
    loop.step()
    store.held = {f"org/slow{i}" for i in range(slow)}
    store.gate.clear()
    return loop


def test_only_requests_that_need_a_load_wait_for_it(make, store):
    loop = slow_and_others(make, store)
    waiting = [loop.submit("slow0", 1) for _ in range(LOOKAHEAD + 10)]
    for _ in range(20 * SLOTS):  # far more than may overtake one that wants room
        others = [loop.submit(name, 1) for name in (None, "quick")]
        loop.step()
        assert set(others) <= set(loop.started)
    assert not set(waiting) & set(loop.started)
    other = loop.submit("other", 1)
    loop.scheduler._waiting.prefetch(loop.now)
    until(lambda: info(loop.registry, "other").state == "resident")
    loop.step()
    assert other in loop.started, "it was loaded beside the slow one"
    store.gate.set()
    while loop.step():
        pass
    assert set(waiting) <= set(loop.started)


def test_the_memory_of_a_running_load_blocks_no_other_request(make, store):
    loop = slow_and_others(make, store, most=1)
    loop.submit("slow0", 1)
    loop.scheduler._waiting.prefetch(loop.now)
    loop.submit("other", 1)  # for which there is no room until the load has ended and its request too
    for _ in range(20 * SLOTS):
        base = loop.submit(None, 1)
        loop.step()
        assert base in loop.started
    store.gate.set()
    while loop.step():
        pass
    assert loop.ids == len(loop.started)


@pytest.mark.slow
def test_requests_whose_adapter_is_not_read_in_time_end_with_an_error_and_others_go_on(make, store):
    loop = slow_and_others(make, store, slow=6, load_timeout=0.3)
    slow = [loop.submit(f"slow{i}", 1) for i in range(6)]
    other = loop.submit("other", 1)
    failed = []
    while loop.step() or loop.registry.failed:
        while loop.registry.failed:
            failed.append(loop.registry.failed.popleft())
            loop.scheduler.drop(next(s for s in slow if s.adapters is failed[-1]), loop.now)
    assert len(failed) == 6
    assert other in loop.started
    for reference in failed:
        assert isinstance(reference.error, AdapterError)
        assert re.search(
            r"adapter slow\d: it was not read within 0\.3 s: .*adapters\.load_timeout", str(reference.error)
        )
    assert all(one.state == "registered" for one in loop.registry.infos() if one.name.startswith("slow"))
    store.gate.set()
    until(lambda: store.reads.count("org/slow0") == 1 and store.returned == 8)
    again = loop.submit("slow0", 1)
    while loop.step():
        pass
    assert again in loop.started, "what came too late did no harm"
    assert store.placed <= 3
    assert all(one.references == one.waiting == 0 for one in loop.registry.infos())


def test_a_request_without_cache_blocks_is_not_overtaken_because_of_its_adapter(make):
    registry = make(most=2)
    registry.add("a", "org/a")
    loop = Loop(registry)
    prompt = [1] * (63 * 16)
    big = RunningRequest.start(0, Request(tuple(prompt)), prompt, 64 * 16, seed=0)
    loop.submit(None, 30)
    loop.step()
    loop.scheduler.add(big, loop.now)
    small = loop.submit("a")
    loop.wait_for_loads()
    loop.step()
    loop.step()
    assert big not in loop.started
    assert small not in loop.started


def test_no_adapter_handle_outlives_its_use(make, store):
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
    class Reference:
        begins = ()

        def __init__(self, *rows):
            self.rows = rows

    class Row:
        def __init__(self, reference):
            self.adapters = reference

    def piece(begin, end, reference):
        return Segment(Row(reference), begin, end, pos0=0, sampled=1)

    a, b = "handle a", "handle b"
    pieces = [
        piece(0, 1, None),
        piece(1, 4, Reference((a, 1.0))),
        piece(4, 5, Reference((a, 1.0))),
        piece(5, 6, Reference((a, 0.5))),
        piece(6, 7, None),
        piece(7, 8, Reference((a, 1.0), (b, 2.0))),
        piece(8, 9, Reference((a, 1.0), (b, 2.0))),
        piece(9, 12, Reference((b, 2.0), (a, 1.0))),
    ]
    assert [tuple(rows) for rows in adapter_rows(pieces)] == [
        (1, 5, a, 1.0), (5, 6, a, 0.5), (7, 9, a, 1.0), (7, 9, b, 2.0), (9, 12, b, 2.0), (9, 12, a, 1.0)
    ]  # fmt: skip
    assert adapter_rows(pieces[:1]) == []
