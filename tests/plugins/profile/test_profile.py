"""A profile of an engine: its sums, its table, its trace, and no effect on results."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_parts import MakeEngine
from infeng_profile import Profile, stacks
from infeng_profile import profile as profiled
from infeng_profile.totals import StageTotal
from numpy.typing import NDArray

from infeng_core import Engine, SamplingParams
from infeng_core.batch import Batch
from infeng_core.cli import main
from infeng_core.errors import KernelError, UsageError

PROMPTS = ["the quick brown fox", "1 2 3 4 5", "x"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
INSIDE = ("schedule", "run", "sample", "detokenize")


@pytest.fixture
def measured(make_engine: MakeEngine) -> tuple[Engine, Profile]:
    """An engine without ops that wait for adapters, and the profile of three requests."""
    engine = make_engine(adapters__max_resident=0)
    with profiled(engine) as profile:
        engine.generate(PROMPTS, GREEDY)
    return engine, profile


def slices_of(path: Path) -> list[dict[str, Any]]:
    """Return the complete events of a trace."""
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


@pytest.mark.slow
def test_a_profile_changes_no_token(make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=16, ignore_eos=True)
    plain = [answer.token_ids for answer in engine.generate(PROMPTS, params)]
    with profiled(engine):
        measured = [answer.token_ids for answer in engine.generate(PROMPTS, params)]
    after = [answer.token_ids for answer in engine.generate(PROMPTS, params)]
    assert plain == measured == after


def test_the_engine_is_as_before_afterwards_even_when_a_step_fails(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, calls = make_engine(), 0
    run = engine.executable.run

    def fail_the_third_time(batch: Batch) -> NDArray[np.float32]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KernelError("step", "it failed", "mend it")
        return run(batch)

    monkeypatch.setattr(engine.executable, "run", fail_the_third_time)
    before = dict(vars(engine))
    with profiled(engine) as profile, pytest.raises(KernelError):
        engine.generate("x", GREEDY)
    assert vars(engine) == before
    assert {name: profile.stages[name].calls for name in ("step", "run", "sample")} == {
        "step": 3,
        "run": 3,
        "sample": 2,
    }


def test_no_timer_runs_outside_of_a_profile(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, readings = make_engine(), 0
    clock = time.perf_counter_ns

    def count() -> int:
        nonlocal readings
        readings += 1
        return clock()

    monkeypatch.setattr(time, "perf_counter_ns", count)
    engine.generate("x", GREEDY)
    assert readings == 0
    with profiled(engine):
        engine.generate("x", GREEDY)
    during = readings
    engine.generate("x", GREEDY)
    assert readings == during >= 2 * 12 * 5


def test_stages_lie_within_their_step_and_ops_within_the_run(measured: tuple[Engine, Profile]) -> None:
    _, profile = measured
    stages = profile.stages
    assert set(stages) == {"tokenize", "step", *INSIDE}
    assert sum(stages[name].seconds for name in INSIDE) <= stages["step"].seconds
    assert stages["tokenize"].calls == 1
    assert stages["step"].calls >= stages["run"].calls == stages["sample"].calls == stages["detokenize"].calls > 0
    native = profile.measured
    assert native is not None
    assert native.steps == stages["run"].calls
    assert native.step_ns / 1e9 <= stages["run"].seconds
    in_ops = sum(op.seconds for op in profile.ops)
    assert in_ops + (native.head_ns + native.tail_ns) / 1e9 == pytest.approx(
        native.step_ns / 1e9, abs=1e-6
    )  # each part is rounded
    for op in profile.ops:
        assert op.worker_seconds == pytest.approx(2 * op.seconds, abs=1e-6)
        assert 0 < op.busy_seconds + op.late_seconds <= op.worker_seconds, op


def test_every_op_of_the_model_appears_with_its_kernel(measured: tuple[Engine, Profile]) -> None:
    engine, profile = measured
    bound = {(op.op, re.sub(r" x\d+$", "", op.detail), f"{op.library}/{op.kernel}") for op in engine.bound()}
    ran = {(op.op, op.detail, op.kernel) for op in profile.ops}
    assert ran <= bound
    assert {(op, detail) for op, detail, _ in ran} == {(op, detail) for op, detail, _ in bound}
    assert profile.measured is not None
    rows = {op.detail: op.rows for op in profile.ops if op.op == "embed"}
    assert sum(rows.values()) == profile.measured.rows


def test_products_are_those_of_the_weights(measured: tuple[Engine, Profile]) -> None:
    _, profile = measured
    checked = 0
    for op in profile.ops:
        size = re.search(r" (\d+)x(\d+)", op.detail)
        if op.op == "linear" and size:
            assert op.macs == op.rows * int(size[1]) * int(size[2])
            assert op.gmacs_per_s == pytest.approx(op.macs / op.seconds / 1e9)
            checked += 1
        elif op.op in ("rmsnorm", "rope"):
            assert (op.macs, op.gmacs_per_s, op.gbytes_per_s) == (0, None, None)
    assert checked >= 5


def test_the_table_shows_stages_ops_and_what_is_unavailable(measured: tuple[Engine, Profile]) -> None:
    engine, profile = measured
    text = profile.table()
    steps = profile.stages["step"].calls
    assert re.search(rf"^profile of [\d.]+ s: {steps} steps, \d+ rows on 2 threads$", text, re.MULTILINE)
    for stage in ("tokenize", *INSIDE, "  linear", "  attention", "  rmsnorm", "  embed", "  check", "rest", "step"):
        assert re.search(rf"^{stage} .*\d+\.\d\d +\d+\.\d% +\d+\.\d{{3}}$", text, re.MULTILINE), stage
    assert re.search(rf"^step +{steps} +[\d.]+ +100\.0%", text, re.MULTILINE)
    for op in engine.bound():
        assert re.search(rf"^{op.op} {re.escape(re.sub(r' x[0-9]+$', '', op.detail))} ", text, re.MULTILINE), op
    assert re.search(r"^(cycles +\d+|counters +.*: unavailable: .+)$", text, re.MULTILINE)
    assert re.search(r"^memory +\d+ MB at most$", text, re.MULTILINE)


def test_the_stages_of_the_table_add_up(measured: tuple[Engine, Profile]) -> None:
    _, profile = measured
    stage_table = profile.table().split("\n\n")[1]
    ms = {line.split("  ")[0].strip() or line.split()[0]: float(re.findall(r"\d+\.\d\d\b", line)[0])
          for line in stage_table.splitlines()[1:]}  # fmt: skip
    step = ms["step"]
    assert sum(ms[name] for name in (*INSIDE, "rest")) == pytest.approx(step, abs=0.05)


def test_the_trace_is_valid_and_its_slices_nest(measured: tuple[Engine, Profile], tmp_path: Path) -> None:
    engine, profile = measured
    profile.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert sorted(names.values()) == ["engine", "worker 1"]
    slices = [event for event in events if event["ph"] == "X"]
    for tid in names:
        stack: list[dict[str, Any]] = []
        for event in sorted((e for e in slices if e["tid"] == tid), key=lambda e: (e["ts"], -e["dur"])):
            begin, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
            while stack and round((stack[-1]["ts"] + stack[-1]["dur"]) * 1000) <= begin:
                stack.pop()
            assert not stack or end <= round((stack[-1]["ts"] + stack[-1]["dur"]) * 1000), (event, stack[-1])
            if event["cat"] != "stage" and names[tid].startswith("engine"):
                assert stack[-1]["name"] == "run"
            stack.append(event)
    assert {event["name"] for event in slices if event["cat"] == "stage"} == {"tokenize", "step", *INSIDE}
    kinds = {op.op for op in engine.bound()}
    assert {event["cat"] for event in slices} == {"stage", *kinds}
    assert profile.measured is not None
    # Hidden states of all rows are for embed() alone.
    ran = {index for index, op in enumerate(profile.measured.ops) if "of all rows" not in op.detail}
    assert {event["args"]["index"] for event in slices if event["cat"] != "stage"} == ran


def test_a_small_number_of_events_keeps_the_totals_and_a_valid_trace(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine()
    with profiled(engine, events=10) as profile:
        engine.generate(PROMPTS, GREEDY)
    assert profile.stages["step"].calls >= 12
    assert len(profile.timers.slices) == 10
    profile.write_trace(tmp_path / "trace.json")
    assert 10 < len(slices_of(tmp_path / "trace.json")) <= 30


def test_steps_of_other_threads_have_tracks_of_their_own(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine()
    with profiled(engine) as profile:
        engine.generate("x", GREEDY)
        thread = threading.Thread(target=engine.generate, args=("y", GREEDY))
        thread.start()
        thread.join()
    profile.write_trace(tmp_path / "trace.json")
    slices = slices_of(tmp_path / "trace.json")
    runs = {event["tid"] for event in slices if event["name"] == "run"}
    assert len(runs) == 2
    assert {event["tid"] for event in slices if event["cat"] == "linear"} == runs | {max(runs) + 1}


def test_a_second_profile_at_the_same_time_is_refused_and_one_after_starts_from_zero(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with profiled(engine) as first:
        with pytest.raises(UsageError, match="measured already"), profiled(engine):
            pass
        engine.generate("x", GREEDY)
    with profiled(engine) as second:
        pass
    assert first.stages["step"].calls == 12
    assert (second.stages, second.ops) == ({}, [])
    assert "profile of" in second.table()


def test_an_engine_that_is_closed_meanwhile_keeps_its_stages(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with profiled(engine) as profile:
        engine.generate("x", GREEDY)
        engine.close()
    assert profile.stages["step"].calls == 12
    assert (profile.ops, profile.measured) == ([], None)
    with pytest.raises(UsageError, match="closed"), profiled(engine):
        pass


def test_a_backend_that_does_not_measure_gives_stages_alone(make_engine: MakeEngine, tmp_path: Path) -> None:
    pytest.importorskip("infeng_numpy")
    engine = make_engine(backend__use="numpy")
    with profiled(engine) as profile:
        engine.generate("x", GREEDY)
    assert profile.stages["run"].calls == 12
    assert re.search(r"^run +12 ", profile.table(), re.MULTILINE)
    profile.write_trace(tmp_path / "trace.json")
    assert {event["cat"] for event in slices_of(tmp_path / "trace.json")} == {"stage"}


def test_the_profile_as_data_has_every_value(measured: tuple[Engine, Profile]) -> None:
    _, profile = measured
    facts = json.loads(json.dumps(profile.as_dict()))
    assert facts["stages"]["step"]["calls"] == profile.stages["step"].calls
    assert len(facts["ops"]) == len(profile.ops)
    assert facts["threads"] == 2
    assert facts["usage"]["cpu_seconds"] > 0
    assert set(facts["counters"]["values"]) | set(facts["counters"]["unavailable"]) == {
        "cycles", "instructions", "llc_misses"
    }  # fmt: skip


def stacks_of(path: Path) -> dict[tuple[str, ...], int]:
    """Return the microseconds of each stack, as flamegraph.pl reads them: the last blank begins the count."""
    found: dict[tuple[str, ...], int] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"(.*)\s+(\d+)", line)
        assert match is not None, line
        frames = tuple(match[1].split(";"))
        assert frames not in found and all(frame.strip() == frame != "" for frame in frames), line
        found[frames] = int(match[2])
    return found


def test_the_stacks_add_up_to_the_steps_and_their_stages(measured: tuple[Engine, Profile], tmp_path: Path) -> None:
    profile = measured[1]
    profile.write_stacks(tmp_path / "stacks.txt")
    found = stacks_of(tmp_path / "stacks.txt")
    assert {frames[0] for frames in found} == {"infeng"} and min(found.values()) > 0

    def below(*frames: str) -> int:
        return sum(count for stack, count in found.items() if stack[: len(frames)] == frames)

    rounding = len(found)  # half a microsecond each
    assert below("infeng", "step") == pytest.approx(1e6 * profile.stages["step"].seconds, abs=rounding)
    for name in INSIDE:
        assert below("infeng", "step", name) == pytest.approx(1e6 * profile.stages[name].seconds, abs=rounding)
    for op in profile.ops:
        own = below("infeng", "step", "run", op.op, op.detail or op.op, op.kernel)
        assert own == pytest.approx(1e6 * op.seconds, abs=rounding), op
    assert {frames[-1] for frames in found if "worker 1" in frames} == {"tiles", "late", "wait"}
    assert below("infeng", "tokenize") > 0


def test_stacks_of_a_backend_that_does_not_measure_are_the_stages(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(backend__use="numpy")
    with profiled(engine) as profile:
        engine.generate(PROMPTS[:1], GREEDY)
    profile.write_stacks(tmp_path / "stacks.txt")
    assert ("infeng", "step", "run") in stacks_of(tmp_path / "stacks.txt")


def test_names_in_stacks_end_neither_a_frame_nor_a_line() -> None:
    found = list(stacks.collapsed({"a;b\nc 7": StageTotal("x", 1, 1.0), " ": StageTotal("y", 1, 0.5)}, None))
    assert sorted(found) == ["infeng;? 500000", "infeng;a,b c 7 1000000"]


def test_the_command_writes_stacks_with_or_without_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")
    out, trace = tmp_path / "stacks.txt", tmp_path / "trace.json"
    call = ["run", str(demo.model_dir()), "-p", "Once", "-n", "3", "-t", "1", "--profile-stacks", str(out)]
    assert main(call) == 0
    assert stacks_of(out) and "speedscope" in capsys.readouterr().err
    assert main([*call, "--profile", str(trace)]) == 0
    assert slices_of(trace) and stacks_of(out)
    capsys.readouterr()
    call[-1] = str(tmp_path / "none" / "stacks.txt")
    assert main(call) == 2
    said = capsys.readouterr()
    assert "give --profile-stacks a file in a folder that exists" in said.err and not said.out.strip()


def test_a_trace_that_cannot_be_written_is_an_error(measured: tuple[Engine, Profile], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        measured[1].write_trace(tmp_path / "missing" / "trace.json")


@pytest.mark.parametrize("events", [0, -1, True, 1.5, "9", None, (1 << 24) + 1])
def test_a_number_of_events_out_of_range_is_refused(make_engine: MakeEngine, events: Any) -> None:
    with pytest.raises(UsageError, match="events"), profiled(make_engine(), events=events):
        pass
