"""`infeng bench zipf` from end to end, on peers whose answers are known."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_model
from infeng_bench.models import adapters
from infeng_peers import environment, known
from infeng_peers import export_gguf_adapter as exporter
from infeng_peers.verbs import zipf_options

from infeng_core.cli import main

PEER = """
import time

NAME = "NAME_HERE"
OPTIONS = {"turns": "rotate", "fault": "none"}


def open_model(model, threads, options):
    class Fake:
        vocab = 320
        mixes = MIXES_HERE

        def introduction(self):
            details = {"kv_bytes_per_position": 100, "model": model, "threads": threads}
            return {"version": "7", "kernels": ["fast"], "bytes_per_token": 1000, "details": details}

        def drop_adapters(self):
            self.adapters = {}

        def load_adapter(self, name, path, scale):
            if options["fault"] == "load":
                raise MemoryError("no room for the adapter")
            self.adapters[name] = (path, scale)

        def open(self, kind, slots, positions):
            self.rows = {}

        def admit(self, slot, prompt, adapter):
            assert adapter is None or adapter in self.adapters
            self.rows[slot] = [adapter, sum(prompt)]

        def advance(self, slots):
            time.sleep(0.001)
            produced = []
            for slot in slots:
                adapter, token = self.rows[slot]
                self.rows[slot][1] += 1 if adapter is None else 2 + int(adapter[1:])
                produced.append((slot, token % 320))
            if options["fault"] == "lost":
                produced.append(produced[0])
            return produced

        def release(self, slot):
            del self.rows[slot]

    return Fake()
"""


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put two installed peers into the registry: "one" takes turns, "all" mixes adapters in a step."""
    made = {}
    for name, mixes in (("one", False), ("all", True)):
        file = tmp_path / f"{name}.py"
        file.write_text(PEER.replace("NAME_HERE", name).replace("MIXES_HERE", str(mixes)))
        made[name] = known.Peer(
            NAME=name,
            ABOUT="for tests",
            REQUIREMENTS=("fake==7",),
            IMPORTS=(),
            FORMATS={"int4-g64": "q4", "int4-p32": "q4"},
            OPTIONS={"turns": "rotate", "fault": "none"},
            READS_GGUF=True,
            TAKES_ADAPTERS=True,
            path=file,
        )
    original = known.peer
    monkeypatch.setattr(known, "NAMES", (*known.NAMES, *made))
    monkeypatch.setattr(known, "peer", lambda name: made.get(name) or original(name))
    for peer in made.values():
        place = environment.Environment(peer)
        place.tools.mkdir(parents=True, exist_ok=True)
        place.python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        place.python.chmod(0o755)
        record = {"requirements": ["fake==7"], "versions": {"fake": "7"}, "flags": {}, "python": "3"}
        (place.folder / environment.RECORD).write_text(json.dumps(record))


def zipf(config: Path, out: Path, *more: str) -> dict[str, Any]:
    """Run the verb and return its result."""
    assert call(config, "--json", str(out), *more) == 0
    loaded: dict[str, Any] = json.loads(out.read_text())
    return loaded


@pytest.fixture(scope="module")
def gguf_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Llama as GGUF."""
    folder = tmp_path_factory.mktemp("gguf")
    file = folder / "q.gguf"
    assert main(["convert", str(tiny_model.write(folder / "model")), str(file), "--format", "q8_0"]) == 0
    return file


@pytest.fixture(scope="module")
def gguf_adapter(gguf_base: Path) -> Path:
    """Return an adapter for it, a GGUF too."""
    pytest.importorskip("gguf", reason="adapters are written by the package gguf, which is not installed here")
    file, base = gguf_base.with_name("x.gguf"), gguf_base.with_name("model")
    exporter.export(adapters.peft_directory(base, 2, "qv", 1), base, file, "f16")
    return file


def call(config: Path, *more: str) -> int:
    few = ("--num-requests", "9", "--max-new-tokens", "3", "--prompts", "random:5", "--rank", "2", "-t", "1")
    return main(["bench", "zipf", "--synthetic", str(config), "--engine", "one", *few, *more])


def test_one_engine_gives_the_figures_of_a_serving_benchmark(
    fakes: None, tiny_config: Path, tmp_path: Path, schema: Any
) -> None:
    result = zipf(tiny_config, tmp_path / "out.json", "--iters", "2", "--include-base", "--adapters", "3")
    schema(result)
    assert (result["adapters"], result["rank"], result["targets"]) == (3, 2, "all")
    assert (result["completed"], result["total_input_tokens"], result["total_output_tokens"]) == (18, 90, 54)
    assert result["output_throughput"] == pytest.approx(3 * result["request_throughput"])
    assert result["total_token_throughput"] == pytest.approx(8 * result["request_throughput"])
    assert (result["arrival"], result["concurrency"], result["num_requests"]) == ("closed", 4, 9)
    groups = result["per_adapter"]
    assert set(groups) <= {"a0", "a1", "a2", "base"}
    assert sum(group["requests"] for group in groups.values()) == 18
    assert sum(group["output_tokens"] for group in groups.values()) == 54
    assert result["mean_ttft_ms"] <= result["mean_e2el_ms"]
    assert result["peak_rss_bytes"] > 1 << 20
    assert result["kernels"] == ["fast"]
    assert "engines" not in result and "lora_tax" not in result


@pytest.mark.slow
def test_engines_take_turns_and_get_the_same_requests(
    fakes: None, undisturbed: None, tiny_config: Path, tmp_path: Path, schema: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--engine", "all,one", "--iters", "5", "--against", "single,base", "--profile")
    result = zipf(tiny_config, tmp_path / "out.json", *options)
    schema(result)
    assert result["base"] == "all"
    assert list(result["engines"]) == ["all", "one"]
    assert result["engines"]["all"]["per_adapter"].keys() == result["engines"]["one"]["per_adapter"].keys()
    ratios = sorted(pair["all"] / pair["one"] for pair in result["pairs"])
    assert result["ratios"] == {"one": pytest.approx(ratios[2])}
    assert result["ratio_low"] == {"one": pytest.approx(ratios[0])}
    one = result["engines"]["one"]
    assert one["answers_changed"] == result["answers_changed"] == 1.0
    shown = capsys.readouterr().out
    assert "all is " in shown and "x one, at least" in shown
    assert "mixed, " in shown and "adapters cost " in shown
    assert "a0" in shown  # of the profile


def test_a_sweep_is_a_list_and_a_table(fakes: None, tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    table, metrics = tmp_path / "out.csv", tmp_path / "metrics.csv"
    options = ("--sweep", "adapters=1,3;rank=2,4", "--iters", "1", "--csv", str(table), "--metrics-out", str(metrics))
    result = zipf(tiny_config, tmp_path / "out.json", *options)
    schema(result)
    assert [(one["adapters"], one["rank"]) for one in result["measurements"]] == [(1, 2), (1, 4), (3, 2), (3, 4)]
    lines = table.read_text().splitlines()
    assert len(lines) == 5
    assert {"rank", "output_throughput", "median_ttft_ms", "adapter_swap_ms"} <= set(lines[0].split(","))
    assert metrics.read_text() == table.read_text()


def test_adapters_and_prompts_of_the_user_are_used(fakes: None, tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    given = [f"{name}={adapters.peft_directory(tiny_config, 2, 'qv', k)}" for k, name in enumerate(("x1", "x2"))]
    questions = tmp_path / "data" / "gsm8k_test.jsonl"
    questions.parent.mkdir()
    questions.write_text("".join(json.dumps({"question": "x" * n}) + "\n" for n in range(1, 12)))
    options = ["--prompts", "gsm8k", "--data", str(questions.parent), "--zipf-alpha", "0", "--lora-scale", "0.5"]
    options += ["--num-requests", "11", "--warmup", "0", "--iters", "1", "--n-ctx", "8"]
    result = zipf(tiny_config, tmp_path / "out.json", "--adapter", given[0], "--adapter", given[1], *options)
    schema(result)
    assert (result["adapters"], result["lora_scale"]) == (2, 0.5)
    assert "rank" not in result
    assert {name: group["requests"] for name, group in result["per_adapter"].items()} == {"x1": 6, "x2": 5}
    assert result["total_input_tokens"] == 1 + 2 + 3 + 4 + 7 * 5  # cut so that 3 new tokens fit into 8


def test_requests_arrive_by_poisson_or_by_a_trace(fakes: None, tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    result = zipf(tiny_config, tmp_path / "out.json", "--rate", "200", "--warmup", "0", "--iters", "1")
    schema(result)
    assert (result["arrival"], result["request_rate"]) == ("poisson", 200.0)
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival,prompt_tokens,output_tokens\n0,4,2\n1,500,9\n3,6,1\n")
    options = ("--trace", str(trace), "--speed", "100", "--warmup", "0", "--iters", "1")
    result = zipf(tiny_config, tmp_path / "out.json", *options)
    schema(result)
    assert (result["arrival"], result["trace"], result["completed"]) == ("trace", "trace.csv", 3)
    assert result["total_output_tokens"] == 2 + 1 + 1  # the second prompt fills the context of 256 but for one
    assert result["duration"] >= 0.03


@pytest.mark.slow
def test_our_engine_takes_part(fakes: None, tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    options = (
        "--engine",
        "infeng,all",
        "--iters",
        "2",
        "--against",
        "base,single",
        "--adapters",
        "17",
        "--rank",
        "1,3",
    )
    result = zipf(tiny_config, tmp_path / "out.json", *options, "--lora-scale", "8", "--max-new-tokens", "8")
    schema(result)
    assert (result["base"], result["rank"], result["adapters"]) == ("infeng", "1,3", 17)
    assert result["answers_changed"] > 0.5
    assert result["adapter_swap_ms"] > 0
    details = result["engine_details"]
    assert (details["infeng"]["adapter_dtype"], details["all"]["vocab"]) == ("int8", 320)
    assert {line["op"] for line in result["kernels"]["infeng"]} >= {"linear", "shrink"}
    assert result["kernels"]["all"] == ["fast"]


@pytest.mark.parametrize("engines", ["one", "infeng,one", "infeng"])
def test_a_gguf_model_and_gguf_adapters_reach_every_engine_unchanged(
    fakes: None, gguf_base: Path, gguf_adapter: Path, tmp_path: Path, schema: Any, engines: str
) -> None:
    out = tmp_path / "out.json"
    options = ["--base-model", str(gguf_base), "--adapter", f"a1={gguf_adapter}", "--engine", engines]
    few = ["--num-requests", "3", "--max-new-tokens", "3", "--prompts", "random:5", "--iters", "1", "-t", "1"]
    assert main(["bench", "zipf", *options, *few, "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    schema(result)
    assert set(result["per_adapter"]) == {"a1"} and result["completed"] == 3
    if engines == "one":
        assert result["format"] == "q.gguf"
        assert result["engine_details"]["one"]["model"] == str(gguf_base)


def test_random_adapters_have_the_sizes_of_a_gguf_model(
    fakes: None, gguf_base: Path, tmp_path: Path, schema: Any
) -> None:
    out = tmp_path / "out.json"
    few = ["--num-requests", "4", "--max-new-tokens", "2", "--prompts", "random:5", "--iters", "1", "-t", "1"]
    more = ["--adapters", "2", "--rank", "2", "--engine", "infeng", "--json", str(out)]
    assert main(["bench", "zipf", "--base-model", str(gguf_base), *few, *more]) == 0
    result = json.loads(out.read_text())
    schema(result)
    assert result["adapters"] == 2


@pytest.mark.parametrize(
    ("engine", "reads", "more", "text"),
    [
        ("one", False, [], "one: it reads no GGUF"),
        ("infeng", True, ["--prompts", "gsm8k"], "give --prompts random:LENGTH"),
        ("infeng", True, ["--format", "int4-g64"], "has formats of its own"),
    ],
)
def test_options_that_conflict_with_a_gguf_are_an_error_with_the_reason(
    fakes: None,
    gguf_base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    engine: str,
    reads: bool,
    more: list[str],
    text: str,
) -> None:
    (tmp_path / "gsm8k_test.jsonl").write_text(json.dumps({"question": "x"}) + "\n")
    if engine != "infeng":
        changed = dataclasses.replace(known.peer(engine), READS_GGUF=reads)
        monkeypatch.setattr(known, "peer", lambda name: changed)
    call = ["bench", "zipf", "--base-model", str(gguf_base), "--engine", engine, "--data", str(tmp_path), "-t", "1"]
    assert main([*call, *more]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--engine", "tow"], "unknown"),
        (["--engines", "infeng,mistralrs"], "mistralrs: requests cannot be put to it as they arrive"),
        (["--engine", "one,one"], "does not name different engines"),
        (["--engine", "openvino"], "not installed"),
        (["--adapter", "x"], "is not NAME=PATH"),
        (["--adapter", "base=x"], "a name other than base"),
        (["--adapter", "x=/nowhere"], "it is no GGUF, and no adapter_config.json is there"),
        (["--adapter", "x=a", "--adapter", "x=b"], "a name is given twice"),
        (["--adapter", "x=a", "--sweep", "rank=8"], "it makes random adapters"),
        (["--sweep", "ranks=8"], "is not adapters=N,N,...;rank=R,R,..."),
        (["--sweep", "rank=0"], "whole number of at least 1"),
        (["--rank", "8,x"], "whole number of at least 1"),
        (["--rank", "4096"], "no adapter has it"),
        (["--targets", "q_prj"], "the model has no such module"),
        (["--trace", "x.csv", "--rate", "3"], "it tells when requests come"),
        (["--trace", "/nowhere.csv"], "cannot be read as a trace"),
        (["--against", "bas"], "did you mean `base`"),
        (["--zipf-alpha", "nan"], "not finite"),
        (["--prompts", "humanevall"], "did you mean `humaneval`"),
        (["--option", "one.fault=load"], "MemoryError: no room for the adapter"),
        (["--option", "one.fault=lost"], "serving: "),
        (["--option", "one.turns=never"], "none of rotate, drain, sort"),
    ],
)
def test_a_wrong_call_is_an_error_with_the_reason(
    fakes: None, tiny_config: Path, capsys: pytest.CaptureFixture[str], more: list[str], text: str
) -> None:
    try:
        assert call(tiny_config, *more) != 0
    except SystemExit as end:
        assert end.code == 2
    assert text.lower() in capsys.readouterr().err.lower()


def test_a_sweep_names_what_it_varies() -> None:
    assert zipf_options.sweep("rank=8,16") == {"adapters": [4], "rank": [8, 16]}
    assert zipf_options.sweep("adapters=1,2;rank=64") == {"adapters": [1, 2], "rank": [64]}
