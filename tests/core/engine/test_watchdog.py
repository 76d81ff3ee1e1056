"""The place of a step that does not end is reported; the tests set the times of the checks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import odd_plugin
import pytest
import tiny_model

from infeng_core import log
from infeng_core.engine import Engine
from infeng_core.engine.watchdog import Place, Stall, Watchdog
from infeng_core.requests.request import Request, SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)

HELD = """
import threading
inside, go = threading.Event(), threading.Event()
def hold(method):
    def held(self, *args, **kwargs):
        inside.set()
        assert go.wait(60)
        return method(self, *args, **kwargs)
    return held
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    with odd_plugin.installer(tmp_path, monkeypatch) as install:
        yield install


def looked(engine: Engine) -> Stall | None:
    """Return what the watchdog says of a step that it has seen for a minute."""
    engine._watchdog.look(100.0)
    engine._watchdog.look(160.0)
    return engine.stall


@pytest.mark.parametrize(
    ("use", "code", "place"),
    [
        ("scheduler", "Policy.order = hold(FirstCome.order)", "plugin odd: scheduler odd: order()"),
        ("scheduler", "def order(self, now):\n    yield from hold(FirstCome.order)(self, now)\nPolicy.order = order",
         "plugin odd: scheduler odd: order()"),
        ("scheduler", "Policy.served = hold(FirstCome.served)", "plugin odd: scheduler odd: served()"),
        ("backend", "Executable.run = hold(lambda self, batch: self.inner.run(batch))",
         "plugin odd: backend odd: run()"),
        ("tokenizer", "class D:\n    def push(self, token): return 'x'\n    def finish(self): return ''\n"
         "D.push = hold(D.push)\nTokenizer.detokenizer = lambda *_: D()", "plugin odd: tokenizer odd: push()"),
    ],
)  # fmt: skip
def test_a_plugin_method_that_never_returns_is_named(odd, tiny, use: str, code: str, place: str):
    odd(HELD + code)
    with Engine(tiny, threads=1, overrides={f"{use}.use": "odd"}) as engine:
        engine.start()
        stream = engine.submit(Request("the quick", PARAMS))
        held: Any = next(module for name, module in sys.modules.items() if name.startswith("odd_test"))
        assert held.inside.wait(60)
        assert looked(engine) == Stall(place, 60.0)
        held.go.set()
        assert len(stream.result().token_ids) == 3
        engine.stop()
        engine._watchdog.look(170.0)
        assert engine.stall is None


def test_parts_of_the_engine_and_callbacks_have_names_too(tiny):
    inside, go = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        inside.set()
        assert go.wait(60)

    with Engine(tiny, threads=1) as engine:
        run = engine.executable.run
        engine.executable.run = lambda batch: (wait(), run(batch))[1]  # type: ignore[method-assign]
        engine.start(on_step=None)
        stream = engine.submit(Request("the quick", PARAMS))
        assert inside.wait(60)
        assert looked(engine) == Stall("backend native", 60.0)
        go.set()
        stream.result()
        engine.stop()
        inside.clear()
        go.clear()
        del engine.executable.run
        engine.start(on_step=wait)
        stream = engine.submit(Request("the quick", PARAMS))
        assert inside.wait(60)
        assert looked(engine) == Stall("on_step", 60.0)
        go.set()
        stream.result()


def test_consecutive_steps_and_sleep_are_no_stall(capsys):
    moment: list[tuple[object, int, str] | None] = [None]
    place = Place()
    watchdog = Watchdog(lambda: moment[0], place, lambda: None, 10.0)
    place.part = "scheduler odd"
    watchdog.look(0.0)
    for now in range(5, 100, 5):  # a step that ends between any two looks
        moment[0] = object(), 1, ""
        watchdog.look(float(now))
        assert watchdog.stall is None
    for now in range(100, 125, 5):
        watchdog.look(float(now))
    assert watchdog.stall == Stall("scheduler odd", 25.0)
    place.part = None  # it sleeps until adapters are there
    watchdog.look(130.0)
    assert watchdog.stall is None


def test_a_stall_is_reported_again_only_at_a_new_place_or_after_twice_the_time(capsys, monkeypatch):
    log.configure()
    moment, place = (object(), 1, ""), Place()
    watchdog = Watchdog(lambda: moment, place, lambda: None, 10.0)
    place.part = "a"
    for now in range(65):
        watchdog.look(float(now))
    place.part = "b"
    watchdog.look(65.0)
    said = [line for line in capsys.readouterr().err.splitlines() if "does not end" in line]
    assert [line.rpartition("=")[2] for line in said] == ["10", "20", "40", "65"]


def test_the_watchdogs_thread_ends_with_the_engine_and_0_starts_none(tiny):
    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "infeng-watchdog"}

    before = threads()
    with Engine(tiny, threads=1, overrides={"scheduler.stall_ms": 0}):
        assert threads() <= before  # those of other tests may end
    with Engine(tiny, threads=1):
        [watching] = threads() - before
    watching.join(60)
    assert not watching.is_alive()
