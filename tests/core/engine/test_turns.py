"""Threads that share an engine: one runs the steps, others sleep, and submitting never waits."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_adapter
from engine_parts import MakeEngine, Recorder

from infeng_core import SamplingParams
from infeng_core.engine.step_lock import SWITCH_INTERVAL, StepLock
from infeng_core.errors import KernelError, RequestError, UsageError

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


class Held(Recorder):
    """An executable whose steps last until they are let go."""

    def __init__(self, engine: Any) -> None:
        """Stand before the engine's own."""
        super().__init__(engine)
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def run(self, batch: Any) -> Any:
        """Run a step when allowed to."""
        self.entered.release()
        assert self.go.acquire(timeout=30)
        return super().run(batch)


def start(work: Any) -> threading.Thread:
    """Run ``work`` on a thread."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_submitting_and_cancelling_do_not_wait_for_the_step_that_runs(make_engine: MakeEngine):
    engine = make_engine()
    expected = engine.generate("second", GREEDY)[0].token_ids
    held = Held(engine)
    first = engine.submit("first", GREEDY)
    thread = start(first.result)
    assert held.entered.acquire(timeout=30)
    second, third = engine.submit("second", GREEDY), engine.submit("third", GREEDY)  # would hang here
    third.cancel()
    first.cancel()
    held.go.release(100)
    assert second.result().token_ids == expected
    thread.join(timeout=30)
    assert (first.result().finish_reason, third.result().finish_reason) == ("cancelled", "cancelled")
    assert third.result().token_ids == ()
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_a_thread_that_waits_gets_its_events_step_by_step(make_engine: MakeEngine):
    engine = make_engine()
    held = Held(engine)
    long = engine.submit("long", replace(GREEDY, max_tokens=100))
    short = engine.submit("short", replace(GREEDY, max_tokens=5))
    runner = start(long.result)
    assert held.entered.acquire(timeout=30)
    seen: list[int] = []
    taken = threading.Semaphore(0)

    def listen() -> None:
        for event in short:
            seen.extend(event.token_ids)
            taken.release()

    listener = start(listen)
    for step in range(5):
        held.go.release()
        assert taken.acquire(timeout=30), "the thread that runs the steps keeps the others from their events"
        assert len(seen) == step + 1
        assert held.entered.acquire(timeout=30)
    assert not long.finished
    held.go.release(1000)
    runner.join(timeout=30)
    listener.join(timeout=30)


def test_another_thread_runs_steps_once_the_running_thread_is_served(make_engine: MakeEngine):
    engine = make_engine()
    short, long = engine.submit("a", replace(GREEDY, max_tokens=2)), engine.submit("b", GREEDY)
    held = Held(engine)
    runner = start(short.result)
    assert held.entered.acquire(timeout=30)
    waiter = start(long.result)
    held.go.release(1000)
    for thread in (runner, waiter):
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert long.finished


def test_a_failed_step_raises_in_the_thread_that_ran_it_and_the_others_go_on(make_engine: MakeEngine):
    engine = make_engine()
    expected = [completion.token_ids for completion in engine.generate([f"prompt {i}" for i in range(4)], GREEDY)]
    inner, lock, count = engine.executable, threading.Lock(), [0]

    class Failing(Recorder):
        def run(self, batch: Any) -> Any:
            logits = inner.run(batch)
            with lock:
                count[0] += 1
                if count[0] % 4 == 0:
                    raise KernelError("step", "made to fail")
            return logits

    Failing(engine)
    streams = [engine.submit(f"prompt {i}", GREEDY) for i in range(4)]
    found: dict[int, tuple[int, ...]] = {}

    def ask(i: int) -> None:
        while i not in found:
            try:
                found[i] = streams[i].result().token_ids
            except KernelError:
                continue

    threads = [start(lambda i=i: ask(i)) for i in range(4)]  # type: ignore[misc]
    for thread in threads:
        thread.join(timeout=60)
    assert [found.get(i) for i in range(4)] == expected


def test_a_scheduler_error_for_one_request_ends_only_that_request(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
):
    engine = make_engine()
    add = engine._in_flight.scheduler.add

    def choosy(sequence: Any, now: float) -> None:
        if sequence.prompt_length == 3:
            raise RequestError("request", "three is refused", "say more")
        add(sequence, now)

    monkeypatch.setattr(engine._in_flight.scheduler, "add", choosy)
    good, bad = engine.submit([5, 6], GREEDY), engine.submit([5, 6, 7], GREEDY)
    with pytest.raises(RequestError, match="three is refused"):
        bad.result()
    assert bad.finished
    with pytest.raises(RequestError, match="three is refused"):
        next(bad)
    with pytest.raises(StopIteration):
        next(bad)
    assert len(good.result().token_ids) == 20
    with pytest.raises(RequestError, match="three is refused"):
        engine.generate([[5, 6], [5, 6, 7]], GREEDY)
    with pytest.raises(RequestError, match="three is refused"):
        list(engine.stream([[5, 6], [5, 6, 7]], GREEDY))
    assert engine.step() is False
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_python_switches_threads_soon_while_a_step_runs_and_as_before_afterwards(make_engine: MakeEngine):
    engine, other = make_engine(), make_engine()
    before = sys.getswitchinterval()
    assert before > SWITCH_INTERVAL
    held, other_held = Held(engine), Held(other)
    threads = [start(lambda e=e: e.generate("x", replace(GREEDY, max_tokens=1))) for e in (engine, other)]  # type: ignore[misc]
    for waits in (held, other_held):
        assert waits.entered.acquire(timeout=30)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)
    held.go.release()
    threads[0].join(timeout=30)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL), "the other engine still runs"
    other_held.go.release()
    threads[1].join(timeout=30)
    assert sys.getswitchinterval() == pytest.approx(before)


def test_a_turn_is_left_when_its_work_fails():
    turns = StepLock()

    def fail() -> None:
        raise KeyboardInterrupt

    for attempt in (lambda: turns.attempt(fail), lambda: turns.run(fail), lambda: turns.run_until(lambda: False, fail)):
        with pytest.raises(KeyboardInterrupt):
            attempt()
    free: list[bool] = []
    start(lambda: free.append(turns.attempt(lambda: None))).join(timeout=30)
    assert free == [True]


def test_a_turn_within_a_turn_of_the_same_thread_is_an_error_and_not_a_deadlock(make_engine: MakeEngine):
    engine = make_engine()

    class Greedy(Recorder):
        def run(self, batch: Any) -> Any:
            engine.step()
            return super().run(batch)

    Greedy(engine)
    with pytest.raises(UsageError, match="this thread is in the middle of one of its steps: call it after the step"):
        engine.generate("x", GREEDY)


def test_a_cancel_does_not_overtake_its_request(make_engine: MakeEngine):
    engine = make_engine()
    late: list[Any] = []

    class Landing(deque[Any]):
        """Lets another thread submit and cancel when a step has taken in all requests and looks for what failed."""

        def __len__(self) -> int:
            if not late:
                late.append(None)
                thread = start(lambda: late.append(engine.submit("late", replace(GREEDY, max_tokens=200))))
                thread.join(timeout=30)
                start(late[1].cancel).join(timeout=30)
            return super().__len__()

    engine._registry.failed = Landing()
    assert len(engine.generate("x", GREEDY)[0].token_ids) == 20
    assert late[1].result().finish_reason == "cancelled"
    assert engine.step() is False
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_cancels_from_many_threads_affect_no_other_request(make_engine: MakeEngine, tmp_path: Path):
    """Most cancels overtake the step that would take their request in."""
    adapters = {name: tiny_adapter.write(tmp_path / name, seed) for seed, name in enumerate("ab")}
    engine = make_engine(adapters__paths={name: str(path) for name, path in adapters.items()})
    params = replace(GREEDY, max_tokens=3)
    expected = {name: engine.generate("x", params, adapters=name)[0].token_ids for name in (None, "a", "b")}
    failures: list[BaseException] = []

    def ask(seed: int) -> None:
        drawn = random.Random(seed)
        try:
            for _ in range(100):
                name = drawn.choice((None, "a", "b"))
                stream = engine.submit("x", params, adapter=name)
                if drawn.random() < 0.7:
                    time.sleep(drawn.choice((0.0, 0.0, 0.0005)))
                    stream.cancel()
                completion = stream.result()
                if completion.finish_reason != "cancelled":
                    assert completion.token_ids == expected[name]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(seed,), daemon=True) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "a request got lost"
    assert not failures
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total
    assert all(info.references == info.waiting == 0 for info in engine.adapters.infos())


def test_sleepers_use_no_processor_time(make_engine: MakeEngine):
    engine = make_engine()
    held = Held(engine)
    runner = start(engine.submit("x", replace(GREEDY, max_tokens=1)).result)
    assert held.entered.acquire(timeout=30)
    used: list[float] = []

    def wait() -> None:
        begin = time.thread_time()
        engine.generate("y", replace(GREEDY, max_tokens=1))
        used.append(time.thread_time() - begin)

    sleeper = start(wait)
    sleeper.join(timeout=0.5)
    assert sleeper.is_alive()
    held.go.release(10)
    runner.join(timeout=30)
    sleeper.join(timeout=30)
    assert used[0] < 0.25
