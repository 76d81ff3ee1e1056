"""`infeng nightly` as people call it: real verbs on the demo model, a history, and the exit status."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("infeng_nightly", reason="the nightly wheel is not installed")
pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

from infeng_bench.engine import running as bench_running
from infeng_bench.reports import results
from infeng_nightly import history, measurements, night, running
from infeng_nightly.measurements import Measurement

from infeng_core import Engine
from infeng_core.api import UsageError
from infeng_core.cli import main

STEP = 0.002
"""Seconds of a step on the tests' own clock."""


class Clock:
    """A clock on which steps take as long as a test says, with the noise of a shared machine."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slower = 1.0
        """Factor of the steps that decode."""
        self._random = np.random.default_rng(5)

    def step(self, rows: int) -> None:
        """Let the time of a step pass."""
        factor = self.slower if rows <= 4 else 1.0
        self.now += STEP * factor * float(np.exp(self._random.normal(0, 0.01)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """Put the steps of every engine on a clock of their own, as `infeng bench` reads it."""
    made = Clock()
    run = Engine.step

    def step(engine: Engine) -> bool:
        rows = int(engine.load().running)
        done = run(engine)
        made.step(rows if engine.load().waiting == 0 else 99)
        return done

    monkeypatch.setattr(Engine, "step", step)
    monkeypatch.setattr(bench_running, "time", SimpleNamespace(perf_counter=lambda: made.now))
    return made


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure decoding and quality, in seconds."""
    words = ("--rows", "1,4", "--context", "32", "--steps", "16", "--pairs", "1", "--roofline", "none")
    kept = [
        Measurement("decode", words, measurements.measurements(quick=True)[0].kinds),
        *(one for one in measurements.measurements(quick=True) if one.verb == "quality"),
    ]
    monkeypatch.setattr(night, "measurements", lambda *, quick: kept)


@pytest.fixture
def nightly(tmp_path: Path) -> Callable[..., int]:
    """Return ``nightly("--option", ...)``: the exit status of a quick run for one history."""

    def run(*words: str) -> int:
        place = str(tmp_path / "history.jsonl")
        return main(["nightly", "--quick", "--rounds", "5", "-t", "1", *words, "--history", place])

    return run


@pytest.mark.slow
def test_a_slower_engine_is_found_named_and_exits_with_1(
    clock: Clock, short: None, nightly: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        assert nightly("--commit", "good") == 0
    assert "no figure became worse" in capsys.readouterr().out
    clock.slower = 1 / 0.9
    assert nightly("--commit", "bad") == 1
    said = capsys.readouterr()
    named = [line for line in said.out.splitlines() if line.startswith("REGRESSION")]
    assert [line.partition(": ")[2].partition(": 1")[0] for line in named] == [
        f"infeng_demo: decoding, decode:rows={rows},context=32,steps=16" for rows in (1, 4)
    ]
    assert "seem worse and are made again" in said.err
    clock.slower = 1.0
    assert nightly() == 0
    runs = history.read(tmp_path / "history.jsonl")
    assert [run.commit for run in runs[:4]] == ["good", "good", "good", "bad"]
    bad = runs[3]
    assert [one["verdict"] for one in bad.judged].count("worse") == 2
    assert all(len(one.readings) == 5 for one in bad.figures if one.kind.unit == "tokens/s")
    assert (
        bad.machine["cpu"]
        and bad.versions["infeng-core"]
        and any("linear: " in one for one in bad.kernels["infeng_demo"])
    )
    assert {one.kind.label for one in bad.figures} == {"decoding", "divergence from f32", "perplexity over f32's"}


@pytest.mark.slow
def test_none_is_named_in_quiet_nights_of_the_real_engine(
    clock: Clock, short: None, nightly: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    only = measurements.measurements(quick=True)[:1]
    words = ("--rows", "4", "--context", "8", "--steps", "4", "--pairs", "1", "--roofline", "none")
    kept = [Measurement("decode", words, only[0].kinds)]
    monkeypatch.setattr(night, "measurements", lambda *, quick: kept)
    assert [nightly() for _ in range(8)] == [0] * 8


@pytest.mark.slow
def test_a_failed_measurement_is_named_and_the_others_are_kept(
    clock: Clock, short: None, nightly: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nightly("--texts", str(tmp_path / "none.txt")) == 1
    assert "infeng_demo, quality: " in capsys.readouterr().err
    run = history.read(tmp_path / "history.jsonl")[0]
    assert {one.kind.label for one in run.figures} == {"decoding"}


def test_a_history_that_cannot_be_used_costs_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "measure", None)  # which would fail
    assert main(["nightly", "--quick", "--history", str(tmp_path)]) == 2
    with history.opened(tmp_path / "history.jsonl"):
        assert main(["nightly", "--quick", "--history", str(tmp_path / "history.jsonl")]) == 2
    assert "another run measures for it" in capsys.readouterr().err
    words = ["nightly", "--model", "a", "a", "--history", str(tmp_path / "history.jsonl")]
    assert main(words) == 2 and "given twice" in capsys.readouterr().err


def test_models_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("a/same", "b/same"):
        (tmp_path / folder).mkdir(parents=True)
    models = [str(tmp_path / "a/same"), str(tmp_path / "b/same")]
    assert main(["nightly", "--model", *models, "--history", str(tmp_path / "history.jsonl")]) == 2
    assert "two of the models have the name same" in capsys.readouterr().err


def test_random_weights_have_no_quality() -> None:
    quality = next(one for one in measurements.measurements(quick=False) if one.verb == "quality")
    decode = measurements.measurements(quick=False)[0]
    assert not running.applies(quality, "tinyllama-1.1b") and running.applies(decode, "tinyllama-1.1b")
    assert running.applies(quality, "org/name")


def test_a_result_of_several_engines_gives_a_figure_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    from report_parts import compared_over_rows_and_context

    found = list(running.parts(compared_over_rows_and_context()))
    assert [engine for _, engine, _, _ in found[:3]] == ["infeng", "openvino", "llama_cpp"]
    assert found[0][0] == "decode:rows=1,context=512" and found[0][2]["tokens_per_s.median"] == 52.5
    tonight = running.Night()
    tonight.add(measurements.measurements(quick=True)[0], "m", compared_over_rows_and_context())
    assert {one.engine for one in tonight.figures()} == {"infeng", "openvino", "llama_cpp"}
    assert results.SCHEMA == "infeng-bench/1"


def test_odd_results_lose_only_their_own_figures() -> None:
    decode = measurements.measurements(quick=True)[0]
    rate = {"tokens_per_s": {"median": float("nan")}}
    bound = [{"op": "linear", "kernel": "avx2/k", "rows": [1, 1], "what": ""}]
    facts = {"kind": "compare", "machine": {"cpu": "c"}, "kernels": {"infeng": bound, "openvino": []}, "work": "w"}
    tonight = running.Night()
    tonight.add(decode, "m", {**facts, "engines": {"infeng": rate, "openvino": {"tokens_per_s": {"median": 2.0}}}})
    assert [(one.engine, one.readings) for one in tonight.figures()] == [("openvino", (2.0,))]
    assert tonight.kernels == {"m": {"linear: avx2/k"}}
    tonight.add(decode, "m", {"kind": "decode", "machine": {}, "kernels": ["avx2/k"], "measurements": []})
    assert len(tonight.figures()) == 1


def test_the_words_of_every_measurement_are_those_of_its_verb() -> None:
    from infeng_bench.command import Bench
    from infeng_quality import compare

    from infeng_core.api.servers import Parser

    for quick in (True, False):
        for one in measurements.measurements(quick=quick):
            parser = Parser()
            if one.verb == "quality":
                compare.configure(parser)
                parser.parse_args(["m", "m", "--texts", "t", *one.words])
            else:
                Bench().configure(parser)
                parser.parse_args([one.verb, "m", *one.words])
    assert len({one.what for one in measurements.measurements(quick=True)}) == 7


@pytest.mark.slow
def test_a_quick_night_measures_all_that_it_lists_and_its_page_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, page = tmp_path / "history.jsonl", tmp_path / "page.html"
    assert main(["nightly", "--quick", "--rounds", "2", "--history", str(place)]) == 0
    run = history.read(place)[0]
    wanted = {kind.label for one in measurements.measurements(quick=True) for _, kind in one.kinds}
    assert {one.kind.label for one in run.figures} == wanted
    line = json.loads(place.read_text())
    for one in line["figures"]:
        assert {"unit", "median", "low", "high", "repeats", "better", "readings"} <= one.keys()
    assert "no figure became worse" in capsys.readouterr().out
    assert main(["dashboard", str(place), "-o", str(page)]) == 0


@pytest.mark.nightly
def test_steps_that_take_a_tenth_longer_are_found_on_the_machines_own_clock(
    short: None,
    nightly: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in range(6):
        assert nightly() == 0
    last = [one for one in history.read(tmp_path / "history.jsonl")[-1].judged if "decoding" in str(one["figure"])]
    if min(one["high"] - one["low"] for one in last) > 0.15:
        pytest.skip("this machine is too noisy now: the interval of a quiet run is wider than the change")
    run = Engine.step

    def slower(engine: Engine) -> bool:
        begin = time.perf_counter()
        done = run(engine)
        end = time.perf_counter()
        while time.perf_counter() < end + (end - begin) / 9:
            pass
        return done

    monkeypatch.setattr(Engine, "step", slower)
    assert nightly() == 1
    assert "REGRESSION: infeng_demo: decoding" in capsys.readouterr().out


def test_a_name_of_no_model_is_an_error(nightly: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError):
        running.result_of(measurements.measurements(quick=True)[0], "/no/such/model", running.Options(), Path(), 0)
