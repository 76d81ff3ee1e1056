"""An engine with its own thread: waiting callers, wake-ups and failures."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_parts import MakeEngine, Recorder

from infeng_core import Engine, SamplingParams
from infeng_core.errors import KernelError, PluginError, UsageError

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


def texts(engine: Engine) -> list[Any]:
    """What it says without a thread."""
    return [completion.token_ids for completion in engine.generate(["a", "b", "c"], GREEDY)]


def test_callers_wait_while_the_engines_own_thread_runs_the_steps(make_engine: MakeEngine):
    engine = make_engine()
    expected = texts(engine)
    steppers: set[str] = set()

    class Watching(Recorder):
        def run(self, batch: Any) -> Any:
            steppers.add(threading.current_thread().name)
            return super().run(batch)

    Watching(engine)
    engine.start()
    assert texts(engine) == expected
    assert [event.token_ids[0] for event in engine.stream("b", GREEDY)] == list(expected[1])
    assert steppers == {"infeng-engine"}
    with pytest.raises(UsageError, match="its own thread runs the steps"):
        engine.step()
    with pytest.raises(UsageError, match="it was started already"):
        engine.start()
    engine.stop()
    engine.stop()
    assert texts(engine) == expected
    assert threading.current_thread().name in steppers
    engine.start()
    assert texts(engine) == expected


def test_one_callback_a_step_sees_every_event(make_engine: MakeEngine):
    engine = make_engine()
    expected = texts(engine)
    streams: list[Any] = []
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    ended = threading.Event()
    calls: list[str] = []

    def on_step() -> None:
        calls.append(threading.current_thread().name)
        for index, stream in enumerate(streams):
            for event in stream.pending():
                seen[index] += event.token_ids
        if len(streams) == 3 and all(stream.finished and not stream.is_ready for stream in streams):
            ended.set()
        if len(streams) == 2 and seen[0]:
            streams.append(engine.submit("c", GREEDY))  # callbacks may submit, and more
            with pytest.raises(UsageError, match="its own thread would wait for itself"):
                streams[2].result()

    engine.start(on_step)
    streams += [engine.submit("a", GREEDY), engine.submit("b", GREEDY)]
    assert ended.wait(30)
    assert [tuple(tokens) for tokens in seen.values()] == expected
    assert set(calls) == {"infeng-engine"}
    assert len(calls) < 70


def test_an_idle_thread_sleeps_and_wakes(make_engine: MakeEngine):
    engine = make_engine()
    calls: list[float] = []
    engine.start(lambda: calls.append(time.thread_time()))
    engine.generate("a", GREEDY)
    time.sleep(0.1)
    before, count = calls[-1], len(calls)
    time.sleep(0.3)
    assert len(calls) == count
    engine.generate("b", GREEDY)
    assert len(calls) > count
    assert calls[count] - before < 0.1


def test_coroutines_read_streams(make_engine: MakeEngine):
    engine = make_engine()
    expected = texts(engine)
    engine.start()

    async def read(text: str) -> tuple[int, ...]:
        return tuple([token async for event in engine.submit(text, GREEDY) for token in event.token_ids])

    async def all_of() -> list[tuple[int, ...]]:
        return list(await asyncio.gather(*map(read, "abc")))

    for _ in range(3):  # an event loop each
        assert asyncio.run(all_of()) == expected
    assert not engine._driver._thread._tasks


def test_a_task_that_is_cancelled_cancels_its_request(make_engine: MakeEngine):
    engine = make_engine()
    engine.start()

    async def main() -> str:
        stream = engine.submit("a", replace(GREEDY, max_tokens=200))

        async def read(stream: Any) -> None:
            async for _ in stream:
                pass

        first = asyncio.create_task(read(engine.submit("b", replace(GREEDY, max_tokens=200))))
        await anext(stream)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        del first
        stream.cancel()
        events = [event async for event in stream]
        return events[-1].completion.finish_reason

    assert asyncio.run(main()) == "cancelled"
    engine.generate("c", replace(GREEDY, max_tokens=1))
    engine.stop()
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_waiting_needs_a_thread_that_runs(make_engine: MakeEngine):
    engine = make_engine()

    async def read() -> None:
        async for _ in engine.submit("a", replace(GREEDY, max_tokens=250)):
            engine.stop()

    with pytest.raises(UsageError, match=r"no thread runs its steps: call start\(\)"):
        asyncio.run(read())
    engine.start()
    with pytest.raises(UsageError, match=r"no thread runs its steps: call start\(\)"):
        asyncio.run(read())


def test_waiting_callers_run_steps_themselves_after_the_thread_is_stopped(make_engine: MakeEngine):
    engine = make_engine()
    expected = texts(engine)
    found: list[Any] = []
    engine.start()
    threads = [threading.Thread(target=lambda: found.append(texts(engine))) for _ in range(3)]
    for thread in threads:
        thread.start()
    engine.stop()
    for thread in threads:
        thread.join(timeout=30)
    assert found == [expected] * 3


def test_closing_ends_waiting_callers(make_engine: MakeEngine):
    engine = make_engine()
    engine.start()
    stream = engine.submit("x", replace(GREEDY, max_tokens=200))
    reasons: list[str] = []
    thread = threading.Thread(target=lambda: reasons.append(stream.result().finish_reason))
    thread.start()
    next(stream)
    engine.close()
    thread.join(timeout=30)
    assert reasons == ["cancelled"]
    assert not engine._lifetime.is_open


def test_the_callback_may_close_the_engine(make_engine: MakeEngine):
    engine = make_engine()
    engine.start(lambda: engine.close() if stream.is_ready else None)
    stream = engine.submit("x", replace(GREEDY, max_tokens=200))
    assert stream.result().finish_reason == "cancelled"
    with pytest.raises(UsageError, match="it is closed"):
        engine.submit("x")


@pytest.mark.parametrize("error", [KernelError("step", "made to fail"), ZeroDivisionError("oh")])
def test_a_failed_step_ends_the_requests_in_flight_and_the_thread_continues(make_engine: MakeEngine, error: Exception):
    engine = make_engine()
    expected = texts(engine)

    class Failing(Recorder):
        def run(self, batch: Any) -> Any:
            if (batch.tokens == 9).any():
                raise error
            return super().run(batch)

    Failing(engine)
    engine.start()
    with pytest.raises((KernelError, PluginError), match=str(error)):
        engine.generate([9, 9], GREEDY)
    assert texts(engine) == expected
    engine.stop()  # events come before their step has ended
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_a_failing_callback_affects_no_request(make_engine: MakeEngine):
    engine = make_engine()
    expected = texts(engine)
    engine.start(lambda: 1 / 0)
    assert texts(engine) == expected


def test_a_scheduler_without_a_batch_is_named(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch):
    engine = make_engine()
    monkeypatch.setattr(engine._in_flight.scheduler, "next_batch", lambda now: None)
    engine.start()
    with pytest.raises(PluginError, match="scheduler fcfs: requests wait, and it has no batch"):
        engine.generate("x", GREEDY)


FORGOTTEN = """
import sys
from infeng_core import Engine, SamplingParams
engine = Engine(sys.argv[1], threads=2)
engine.start()
stream = engine.submit("x", SamplingParams(max_tokens=250, ignore_eos=True))
next(stream)
print("bye")
"""


def test_a_process_ends_although_the_thread_was_not_stopped(tiny: Path):
    command = [sys.executable, "-P", "-c", FORGOTTEN, str(tiny)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "bye\n"), done.stderr
    assert "Traceback" not in done.stderr


INTERRUPTED = """
import signal, sys
from infeng_core import Engine, SamplingParams
def interrupt(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
with Engine(sys.argv[1], threads=1) as engine:
    expected = engine.generate("x", params)[0].token_ids
    engine.start()
    count = 0
    for index in range(400):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + index % 50 * 0.0002)
                engine.generate(["x", "y"], params)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            count += 1
    assert engine.generate("x", params)[0].token_ids == expected
    engine.stop()
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total
    print(count > 50)
"""


@pytest.mark.slow
def test_waiting_callers_may_be_interrupted(tiny: Path):
    command = [sys.executable, "-P", "-c", INTERRUPTED, str(tiny)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "True\n", done.stderr[-2000:]
