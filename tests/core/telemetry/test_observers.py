"""Observers are notified of an engine's work, cost nothing if there are none, and change no answer."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tiny_adapter
from engine_parts import MakeEngine

from infeng_core import Completion, Engine, Request, SamplingParams, log
from infeng_core.adapters.records import AdapterChange, AdapterInfo
from infeng_core.errors import AdapterError, PluginError
from infeng_core.telemetry.observers import Observer, StepReport

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPT = [5, 6, 7]


class Kept(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int, int]] = []
        self.steps: list[StepReport] = []
        self.begun: list[tuple[int, Any, int]] = []
        self.over: list[tuple[int, Completion | Exception]] = []
        self.adapters: list[tuple[str, str, str | None]] = []
        self.closings = 0

    def stage(self, name: str, begin: int, end: int) -> None:
        self.stages.append((name, begin, end))

    def step(self, report: StepReport) -> None:
        self.steps.append(report)

    def submitted(self, id: int, request: Request, prompt_tokens: int) -> None:
        self.begun.append((id, request.prompt, prompt_tokens))

    def ended(self, id: int, request: Request, outcome: Completion | Exception) -> None:
        self.over.append((id, outcome))

    def adapter(self, change: AdapterChange, info: AdapterInfo) -> None:
        self.adapters.append((change, info.name, info.error))

    def close(self) -> None:
        self.closings += 1


@pytest.fixture
def bard(tmp_path: Path) -> Path:
    return tiny_adapter.write(tmp_path / "bard", 1)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    folder = tiny_adapter.write(tmp_path / "broken", 2)
    (folder / "adapter_model.safetensors").write_bytes(b"no tensors")
    return folder


def test_stages_follow_each_other_within_their_step(make_engine: MakeEngine) -> None:
    engine, kept = make_engine(), Kept()
    with engine.observe(kept):
        engine.generate([PROMPT], GREEDY)
    names = [name for name, _, _ in kept.stages]
    ran = ["schedule", "run", "sample", "detokenize", "schedule", "step"]
    assert names == ["tokenize", *ran * 6]
    assert all(begin <= end for _, begin, end in kept.stages)
    for first in range(1, len(names), len(ran)):
        *inside, (_, begin, end) = kept.stages[first : first + len(ran)]
        times = [time for _, *both in inside for time in both]
        assert [begin, *times, end] == sorted([begin, *times, end])


def test_steps_report_their_rows_requests_and_new_tokens(make_engine: MakeEngine) -> None:
    engine, kept = make_engine(), Kept()
    with engine.observe(kept):
        engine.generate([PROMPT, [8, 9]], GREEDY)
    assert kept.steps == [StepReport(5, 2, 2), *[StepReport(2, 2, 2)] * 5]


def test_requests_are_reported_once_at_submission_and_once_at_their_end(make_engine: MakeEngine, broken: Path) -> None:
    engine, kept = make_engine(), Kept()
    engine.adapters.load("broken", broken)
    with engine.observe(kept):
        whole = engine.submit(PROMPT, GREEDY)
        cancelled = engine.submit([8, 9], GREEDY)
        failing = engine.submit([4], GREEDY, adapter="broken")
        waiting = engine.submit([3], GREEDY)
        waiting.cancel()
        engine.step()
        cancelled.cancel()
        completion = whole.result()
        with pytest.raises(AdapterError):
            failing.result()
        cancelled.cancel()
    assert kept.begun == [(0, (5, 6, 7), 3), (1, (8, 9), 2), (2, (4,), 1), (3, (3,), 1)]
    assert len(kept.over) == 4
    over = dict(kept.over)
    assert over[0] is completion and completion.finish_reason == "length"
    assert [getattr(over[id], "finish_reason", None) for id in (1, 3)] == ["cancelled"] * 2
    assert isinstance(over[2], AdapterError)


def test_requests_cancelled_by_closing_are_reported_before_the_engine_is_closed(make_engine: MakeEngine) -> None:
    engine, kept = make_engine(), Kept()
    context = engine.observe(kept)
    context.__enter__()
    streams = [engine.submit(PROMPT, GREEDY) for _ in range(2)]
    engine.step()
    engine.close()
    engine.close()
    assert [getattr(outcome, "finish_reason", None) for _, outcome in kept.over] == ["cancelled"] * len(streams)
    assert kept.closings == 1


class Slow(Kept):
    """Takes a while to hear that an adapter was loaded."""

    def adapter(self, change: AdapterChange, info: AdapterInfo) -> None:
        if change == "loaded":
            time.sleep(0.4)
        super().adapter(change, info)


@pytest.mark.parametrize("ends_by", ["unload", "close"])
def test_a_load_for_a_request_is_reported_before_the_adapters_end(
    make_engine: MakeEngine, bard: Path, ends_by: str
) -> None:
    engine, slow = make_engine(), Slow()
    with engine.observe(slow):
        engine.adapters.load("bard", bard)
        engine.generate([PROMPT], GREEDY, adapters=["bard"])
        if ends_by == "unload":
            engine.adapters.unload("bard")
        engine.close()
    assert slow.adapters == [("loaded", "bard", None), ("unloaded", "bard", None)][: 1 + (ends_by == "unload")]


def test_changes_of_adapters_are_reported_before_their_caller_continues(
    make_engine: MakeEngine, bard: Path, broken: Path
) -> None:
    engine, kept = make_engine(), Kept()
    with engine.observe(kept):
        engine.adapters.load("bard", bard)
        assert kept.adapters == []  # it is read when it is first used
        engine.adapters.pin("bard")
        assert kept.adapters == [("loaded", "bard", None)]
        engine.adapters.reload("bard")
        assert kept.adapters[1:] == [("reloaded", "bard", None)]
        engine.adapters.unload("bard")
        assert kept.adapters[2:] == [("unloaded", "bard", None)]
        with pytest.raises(AdapterError) as caught:
            engine.adapters.load("broken", broken, pin=True)
        assert kept.adapters[3:] == [("failed", "broken", str(caught.value))]


def test_a_load_for_a_request_is_reported(make_engine: MakeEngine, bard: Path) -> None:
    engine, kept = make_engine(), Kept()
    engine.adapters.load("bard", bard)
    with engine.observe(kept):
        engine.generate([PROMPT] * 2, GREEDY, adapters="bard")
    assert kept.adapters == [("loaded", "bard", None)]


def calls_of_a_step(engine: Engine) -> Counter[str]:
    """Return how often functions of each file are called by a step that decodes."""
    stream = engine.submit(PROMPT, GREEDY)
    engine.step()
    calls: Counter[str] = Counter()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_filename] += 1
        elif event == "c_call":
            calls[f"C {argument.__name__}"] += 1

    gc.disable()  # a collection calls the functions that other packages registered for it
    sys.setprofile(count)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
        gc.enable()
    stream.cancel()
    return calls


def test_a_step_without_observers_calls_no_telemetry_and_reads_no_clock(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    plain = calls_of_a_step(engine)
    assert not any("telemetry" in name for name in plain)
    assert plain["C perf_counter_ns"] == 0
    with engine.observe(Kept()):
        observed = calls_of_a_step(engine)
    assert any(name.endswith("telemetry/observers.py") for name in observed)
    assert calls_of_a_step(engine) == plain


def test_an_observer_changes_no_token(make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=16, ignore_eos=True)
    plain = [answer.token_ids for answer in engine.generate([PROMPT, [8]], params)]
    with engine.observe(Kept()):
        assert [answer.token_ids for answer in engine.generate([PROMPT, [8]], params)] == plain


class Raising(Kept):
    def step(self, report: StepReport) -> None:
        super().step(report)
        raise ValueError("it is full")


def test_an_observer_that_raises_is_named_once_and_disabled(
    make_engine: MakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, raising, kept = make_engine(), Raising(), Kept()
    expected = engine.generate([PROMPT], GREEDY)[0].token_ids
    with engine.observe(raising), engine.observe(kept):
        assert engine.generate([PROMPT], GREEDY)[0].token_ids == expected
    assert (len(raising.steps), len(kept.steps), len(raising.over), len(kept.over)) == (1, 6, 0, 1)
    assert capsys.readouterr().err.count("ValueError: it is full") == 1


def test_the_built_in_observer_logs_each_request(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "_settings", log._Settings())
    log.configure(json=True, level="info")
    engine = make_engine(observers__use=["log"])
    engine.generate([PROMPT], GREEDY)
    [line] = [line for line in capsys.readouterr().err.splitlines() if "request ended" in line]
    assert '"reason": "length"' in line and '"prompt_tokens": 3' in line and '"completion_tokens": 6' in line


def test_an_unknown_observer_is_an_error(make_engine: MakeEngine) -> None:
    with pytest.raises(PluginError, match="observer lug: no plugin provides it: did you mean `log`"):
        make_engine(observers__use=["lug"])
