"""The command for a timer: candidates, history and page."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("infeng_quality", reason="the quality wheel is not installed")
pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

from infeng_demo import model_dir
from infeng_quality import nightly, page, results
from infeng_quality.nightly import Candidate

from infeng_core.api import PluginError, UsageError
from infeng_core.cli import main


def test_a_candidate_is_a_model_a_manifest_or_a_format(tmp_path: Path) -> None:
    manifest = tmp_path / "a.yaml"
    assert Candidate.parse(str(manifest), "REF") == Candidate(str(manifest))
    assert Candidate.parse("org/name", "REF") == Candidate("org/name")
    assert Candidate.parse(str(tmp_path), "REF") == Candidate(str(tmp_path))
    assert Candidate.parse("int4-g64:f16", "REF") == Candidate("REF", "int4-g64", "f16")
    assert Candidate.parse(":f16", "REF") == Candidate("REF", None, "f16")
    assert Candidate("REF", "int8-row", "f16").arguments("REF", 2) == [
        "--model", "REF", "--format", "int8-row", "--set", "kv_cache.dtype=f16", "--threads", "2"]  # fmt: skip


def test_throughput_is_measured_on_the_model_of_a_manifest(tmp_path: Path) -> None:
    own, plain = tmp_path / "own.yaml", tmp_path / "plain.yaml"
    own.write_text("infeng: 1\nmodel: {path: /models/own}\n")
    plain.write_text("infeng: 1\nkv_cache: {dtype: f16}\n")
    named = {"--manifest": str(own), "--model": "/models/own"}
    for candidate, reference, wanted in (
        (Candidate(str(own)), "REF", named),
        (Candidate(str(own)), str(plain), named),
        (Candidate(str(plain)), "REF", {"--manifest": str(plain), "--model": "REF"}),
        (Candidate(str(plain)), str(own), {"--manifest": str(plain), "--model": "/models/own"}),
        (Candidate.parse("int8-row", str(own)), str(own), {**named, "--format": "int8-row"}),
    ):
        words = candidate.arguments(reference, None)
        assert dict(zip(words[::2], words[1::2], strict=True)) == wanted
    with pytest.raises(UsageError, match="names no model"):
        Candidate(str(plain)).arguments(str(plain), None)


def test_a_failure_of_bench_is_one_error_with_its_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "infeng"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('first\\nlast words')\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(PluginError, match="last words"):
        nightly.throughput("a", [])


def test_the_page_charts_quality_throughput_and_tasks_over_time() -> None:
    interval = {"value": 1.01, "low": 1.0, "high": 1.02}
    quality = {"name": "a", "ppl_ratio": interval, "kl": {"mean": 0.01}, "kl_interval": {"low": 0.0, "high": 0.02},
               "top1": 0.9, "top1_interval": {"low": 0.8, "high": 0.95}, "bytes": 10}  # fmt: skip
    speed = {"name": "a", "work": "decode <1>", "tokens_per_s": {"value": 9.0, "low": 8.0, "high": 10.0}}
    solved = {"name": "a", "task": "gsm8k", "accuracy": {"value": 0.5, "low": 0.4, "high": 0.6}}
    days = [f"2026-01-0{day}" for day in (1, 2, 3)]
    history = [{**results.record("quality", quality), "time": day} for day in days]
    history += [{**results.record("throughput", speed), "time": day} for day in days]
    history += [{**results.record("tasks", solved), "time": day} for day in days]
    html = page.render([], history)
    assert html.count("<polyline") == 6
    assert "Solved: gsm8k" in html
    assert "Tokens/s: decode &lt;1&gt;" in html
    assert "History" not in page.render([], [])


def test_a_damaged_line_of_the_history_loses_only_its_own_points() -> None:
    sound = {**results.record("throughput", {"name": "a", "work": "decode", "tokens_per_s": 9.0}), "time": "2026"}
    odd: list[dict[str, Any]] = [{key: value for key, value in sound.items() if key != gone} for gone in sound]
    values: list[Any] = [None, [], {}, "x", 7, 10**400, 1e999]
    odd += [{**sound, key: value} for key in sound for value in values]
    odd += [{**sound, "kind": kind} for kind in ("quality", "tasks")]
    whole, alone = page.render([], [sound, *odd]), page.render([], odd)
    assert not re.search(r"[ ',](inf|nan)[ ',]", whole)
    assert whole.count("decode") >= alone.count("decode")
    assert "<svg" in page.render([], [sound])


@pytest.mark.slow
def test_the_exit_status_tells_a_missed_gate_or_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "t.jsonl"
    texts.write_text("".join(json.dumps("Once upon a time there was a dog. " * n) + "\n" for n in (3, 4, 5, 6)))
    history, out = tmp_path / "history.jsonl", tmp_path / "page.html"
    words = ["quality", "nightly", str(model_dir()), "int8-row", "f32:f32", "--texts", str(texts), "-t", "1"]
    words += ["--history", str(history), "--report", str(out), "--resamples", "200", "--context", "64"]
    bench = pytest.importorskip("infeng_bench", reason="the bench wheel is not installed")
    assert bench
    assert main([*words, "--gate", "ppl_ratio<=1.5"]) == 0
    found = results.history(history)
    assert [one["kind"] for one in found].count("throughput") == 4
    assert {one["name"] for one in found} == {"int8-row", "f32:f32"}
    assert "Side by side" in out.read_text()
    capsys.readouterr()
    assert main([*words, "no-format", "--no-throughput", "--gate", "ppl_ratio<=1.5"]) == 1
    assert "no-format: " in capsys.readouterr().err
    assert main([*words, "--no-throughput", "--gate", "kl<=0"]) == 1
    assert len(results.history(history)) == 10
    words[2:5] = [str(model_dir()), "no-format"]
    words[words.index(str(history))] = str(tmp_path / "first.jsonl")
    assert main([*words, "--no-throughput"]) == 1  # the first night, on which nothing can be measured
    assert "History" not in out.read_text()
