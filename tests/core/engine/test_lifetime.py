"""Ends: engines that are closed or forked, streams without a reader, steps that are interrupted."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_parts import MakeEngine, Recorder

from infeng_core import Engine, SamplingParams
from infeng_core.adapters.named import NamedAdapters
from infeng_core.backends.interface import InterruptedStepError
from infeng_core.errors import KernelError, UsageError
from infeng_core.telemetry.observers import Observer

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)

REFUSED: dict[str, Callable[[Engine], Any]] = {
    "bound": lambda engine: engine.bound(),
    "check_adapters": lambda engine: engine.check_adapters(None),
    "check_room": lambda engine: engine.check_room(),
    "embed": lambda engine: engine.embed("x"),
    "generate": lambda engine: engine.generate("x"),
    "observe": lambda engine: engine.observe(Observer()),
    "score": lambda engine: engine.score("x", "y"),
    "start": lambda engine: engine.start(),
    "step": lambda engine: engine.step(),
    "stream": lambda engine: engine.stream("x"),
    "submit": lambda engine: engine.submit("x"),
    "tokenize": lambda engine: engine.tokenize("x"),
}
REFUSED_OF_ADAPTERS: dict[str, Callable[[NamedAdapters], Any]] = {
    "__contains__": lambda adapters: "x" in adapters,
    "__getitem__": lambda adapters: adapters["x"],
    "__iter__": lambda adapters: iter(adapters),
    "__len__": lambda adapters: len(adapters),
    "available": lambda adapters: adapters.available(),
    "held": lambda adapters: adapters.held("x", [1]).__enter__(),
    "infos": lambda adapters: adapters.infos(),
    "is_available": lambda adapters: adapters.is_available("x"),
    "load": lambda adapters: adapters.load("x", "/nowhere"),
    "pin": lambda adapters: adapters.pin("x"),
    "reload": lambda adapters: adapters.reload("x"),
    "totals": lambda adapters: adapters.totals(),
    "unload": lambda adapters: adapters.unload("x"),
}
NOTHING: dict[str, Callable[[Engine], Any]] = {
    "close": lambda engine: engine.close(),
    "interrupt": lambda engine: engine.interrupt(),
    "stop": lambda engine: engine.stop(),
}


def test_the_tests_call_every_method_on_a_closed_engine():
    public = {name for name in dir(Engine) if not name.startswith("_") and callable(getattr(Engine, name))}
    assert public == REFUSED.keys() | NOTHING.keys() | {"cancel", "load"}  # load: its counts stay
    assert vars(NamedAdapters).keys() - vars(object).keys() - {"__module__", "__dict__", "__weakref__"} == (
        REFUSED_OF_ADAPTERS.keys()
    )


@pytest.mark.parametrize("backend", ["native", "numpy"])
def test_methods_of_a_closed_engine_raise_or_do_nothing(make_engine: MakeEngine, backend: str):
    engine = make_engine(backend__use=backend)
    before, ended = engine.submit("x", GREEDY), engine.submit("y", replace(GREEDY, max_tokens=1))
    ended.result()
    engine.step()
    engine.close()
    for name, call in REFUSED.items():
        with pytest.raises(UsageError, match="engine: it is closed: make a new one"):
            call(engine)
            pytest.fail(name)
    for name, ask in REFUSED_OF_ADAPTERS.items():
        with pytest.raises(UsageError, match="engine: it is closed: make a new one"):
            ask(engine.adapters)
            pytest.fail(name)
    for call in NOTHING.values():
        assert call(engine) is None
    for stream in (before, ended):
        engine.cancel(stream)
    assert (before.result().finish_reason, ended.result().finish_reason) == ("cancelled", "length")
    assert "".join(event.text for event in before) == before.result().text


def test_generators_that_outlive_their_engine_end_or_raise(make_engine: MakeEngine):
    engine = make_engine()
    events, late = engine.stream(["a", "b"], GREEDY), engine.stream("c", GREEDY)
    first = next(events)
    engine.close()
    rest = list(events)
    assert {event.completion.finish_reason for event in rest if event.completion} == {"cancelled"}
    assert len([event for event in rest if event.completion]) == 2
    assert first.completion is None
    with pytest.raises(UsageError, match="engine: it is closed"):
        next(late)
    late.close()


def test_a_request_submitted_while_the_engine_closes_ends(make_engine: MakeEngine):
    engine = make_engine()
    engine._lifetime.check()
    [prepared] = engine._submissions.prepare("x", GREEDY, None)
    stream = engine._submissions.start(*prepared)
    engine.close()
    assert stream.result().finish_reason == "cancelled"


def test_a_request_whose_stream_is_gone_is_cancelled(make_engine: MakeEngine):
    engine = make_engine(scheduler__max_running=2)
    kept = engine.submit("kept", GREEDY)
    dropped = [engine.submit("dropped", replace(GREEDY, max_tokens=200)) for _ in range(4)]
    engine.step()
    assert engine.scheduler.running + engine.scheduler.waiting == 5
    del dropped
    gc.collect()
    engine.step()
    assert (engine.scheduler.running, engine.scheduler.waiting) == (1, 0)
    assert len(kept.result().token_ids) == 20
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_a_stream_may_be_collected_within_a_step_or_on_another_thread(make_engine: MakeEngine):
    engine = make_engine()
    streams = [engine.submit("x", replace(GREEDY, max_tokens=200)) for _ in range(3)]

    class Collecting(Recorder):
        def run(self, batch: Any) -> Any:
            if len(streams) == 3:
                streams.pop()
            if len(streams) == 2:
                thread = threading.Thread(target=streams.pop)
                thread.start()
                thread.join()
            return super().run(batch)

    Collecting(engine)
    engine.step()
    engine.step()
    assert engine.scheduler.running == 1
    assert streams[0].result().finish_reason == "length"


def test_a_finished_stream_is_collected_without_effect(make_engine: MakeEngine):
    engine = make_engine()
    for _ in range(5):
        engine.submit("x", replace(GREEDY, max_tokens=2)).result()
    assert not engine._in_flight.commands


def test_an_interrupted_step_raises_an_error_that_says_so(make_engine: MakeEngine):
    engine = make_engine()
    expected = engine.generate("x", GREEDY)[0].token_ids
    stream = engine.submit("x", GREEDY)
    inner = engine.executable

    class Interrupting(Recorder):
        def run(self, batch: Any) -> Any:
            stop = threading.Event()

            def interrupt() -> None:
                while not stop.is_set():
                    engine.interrupt()

            thread = threading.Thread(target=interrupt)
            thread.start()
            try:
                while True:
                    inner.run(batch)
            finally:
                stop.set()
                thread.join()

    Interrupting(engine)
    with pytest.raises(KernelError) as caught:
        engine.step()
    assert str(caught.value) == "step: it was interrupted: run it again"
    engine.executable = inner
    assert stream.result().token_ids == expected


class Endless(Recorder):
    """An executable whose steps of a prompt end only when they are cancelled."""

    def __init__(self, engine: Engine) -> None:
        """Stand before the engine's own."""
        super().__init__(engine)
        self.entered = threading.Event()
        self.cancels = 0

    def run(self, batch: Any) -> Any:
        """Run a step again and again if it has a long prompt."""
        while len(batch.tokens) > 30:
            self._inner.run(batch)
            self.entered.set()
            if self.cancels:  # which may have come between two runs
                raise InterruptedStepError("step", "it was interrupted")
        return super().run(batch)

    def cancel(self) -> None:
        """Count."""
        self.cancels += 1
        self._inner.cancel()


def test_cancelling_stops_a_step_without_other_requests(make_engine: MakeEngine):
    engine = make_engine()
    endless = Endless(engine)
    streams = [engine.submit([5] * 40, GREEDY) for _ in range(2)]
    reasons: list[str] = []
    thread = threading.Thread(target=lambda: reasons.extend(s.result().finish_reason for s in streams))
    thread.start()
    assert endless.entered.wait(30)
    streams[0].cancel()
    assert endless.cancels == 0, "the other one still wants the step"
    assert thread.is_alive()
    streams[1].cancel()
    thread.join(30)
    assert reasons == ["cancelled", "cancelled"]
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total
    assert len(engine.generate("x", GREEDY)[0].token_ids) == 20


def test_a_late_cancel_stops_no_other_step(make_engine: MakeEngine):
    engine = make_engine()
    expected = engine.generate("x", GREEDY)[0].token_ids
    stream, other = engine.submit("gone", GREEDY), engine.submit("x", GREEDY)
    inner = engine.executable

    class Late(Recorder):
        runs = 0

        def run(self, batch: Any) -> Any:
            self.runs += 1
            if self.runs == 3:
                raise InterruptedStepError("step", "it was interrupted")  # by a cancel meant for the step before
            return super().run(batch)

    Late(engine)
    assert stream.result().finish_reason == "length"
    assert other.result().token_ids == expected
    engine.executable = inner


FORKING = """
import os, sys, threading
from infeng_core import Engine, SamplingParams
from infeng_core.errors import InfengError, UsageError
params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
engine = Engine(sys.argv[1], threads=2)
stream = engine.submit("x", params)
engine.step()
inside, may_go_on = threading.Event(), threading.Event()

class Held:
    def __init__(self, inner):
        self.inner = inner
    def __getattr__(self, name):
        return getattr(self.inner, name)
    def run(self, batch):
        inside.set()
        may_go_on.wait()
        return self.inner.run(batch)

engine.executable = Held(engine.executable)
runner = threading.Thread(target=stream.result)
runner.start()
inside.wait()  # so that a turn is taken at the moment of the fork, and no library holds a lock that the child keeps
child = os.fork()
may_go_on.set()
if child == 0:
    status = 1
    try:
        for call in (engine.step, stream.result, lambda: engine.generate("x"), lambda: next(engine.stream("x")),
                     lambda: engine.submit("x"), engine.bound, engine.adapters.infos):
            try:
                call()
                print("no error", flush=True)
            except UsageError as error:
                assert "it belongs to process" in str(error) and "spawn" in str(error), error
        stream.cancel()
        engine.interrupt()
        engine.close()
        try:
            engine.step()
        except UsageError as error:
            assert "it is closed" in str(error)
            with Engine(sys.argv[1], threads=2) as mine:
                print(len(mine.generate("x", params)[0].token_ids), flush=True)
                status = 0
    finally:
        os._exit(status)
_, status = os.waitpid(child, 0)
runner.join()
print(os.waitstatus_to_exitcode(status), len(stream.result().token_ids), len(engine.generate("x", params)[0].token_ids))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_an_engine_in_a_fork_names_its_process_and_the_parent_continues(tiny: Path):
    command = [sys.executable, "-P", "-c", FORKING, str(tiny)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["200", "0", "200", "200"], done.stderr[-2000:]


SPAWNING = """
import multiprocessing, sys
from infeng_core import Engine, SamplingParams

def ask(model, queue):
    with Engine(model, threads=1) as engine:
        queue.put(engine.generate("x", SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))[0].token_ids)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with Engine(sys.argv[1], threads=1) as engine:
        child = context.Process(target=ask, args=(sys.argv[1], queue))
        child.start()
        mine = engine.generate("x", SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))[0].token_ids
        print(queue.get(timeout=60) == mine)
        child.join()
"""


@pytest.mark.slow
def test_a_spawned_process_has_an_engine_of_its_own(tiny: Path, tmp_path: Path):
    program = tmp_path / "spawning.py"
    program.write_text(SPAWNING)
    command = [sys.executable, "-P", str(program), str(tiny)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["True"], done.stderr[-2000:]
