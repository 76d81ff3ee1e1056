"""What a format costs with an adapter on both sides, beside what it costs the base model."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("infeng_quality", reason="the quality wheel is not installed")
pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

from infeng_demo import adapter_dir, model_dir
from infeng_quality import models
from infeng_quality.teacher import Teacher

from infeng_core.api import Engine
from infeng_core.cli import main

DEMO = str(model_dir())
PLAY = (
    "First Citizen: Before we proceed any further, hear me speak. All: Speak, speak. First Citizen: You are all "
    "resolved rather to die than to famish? All: Resolved, resolved. The sun was low, and the tide came in again.\n"
)


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "play.jsonl"
    words = PLAY.split()
    path.write_text("".join(json.dumps(" ".join(words[at:] + words[:at])) + "\n" for at in range(0, 32, 4)))
    return path


@pytest.fixture(scope="module")
def reference() -> Iterator[Engine]:
    with models.open_reference(DEMO, 1) as engine:
        yield engine


@pytest.fixture
def measured(play: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return ``measured("--option", ...)``: the result of a comparison of the demo model with itself."""

    def measure(*words: str, status: int = 0) -> dict[str, Any]:
        out = tmp_path / "result.json"
        call = ["quality", DEMO, DEMO, "--texts", str(play), "--tokens", "220", "--context", "32", "-t", "1"]
        assert main([*call, "--resamples", "200", "--json", str(out), *words]) == status
        found: dict[str, Any] = json.loads(out.read_text())
        return found

    return measure


def named(name: str) -> str:
    return f"{name}={adapter_dir(name)}"


def logprobs(teacher: Teacher, ids: list[int]) -> list[float]:
    """Return the log-probability of every token but the first, each given those before it."""
    x = np.concatenate([logits.copy() for _, logits in teacher.logits(ids)]).astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return [float(x[at, token]) for at, token in enumerate(ids[1:])]


@pytest.mark.parametrize("name", ["shakespeare", "shakespeare-dora"])
def test_a_text_scored_with_an_adapter_has_the_logprobs_of_the_engine(reference: Engine, name: str) -> None:
    ids = reference.tokenizer.encode([PLAY])[0][:60]
    reference.adapters.load(name, str(adapter_dir(name)))
    try:
        hold = functools.partial(reference.adapters.held, name)
        found = logprobs(Teacher(reference.executable, reference.limits, hold), ids)
        assert found == [one.logprob for one in reference.score(ids[:1], ids[1:], adapter=name)]
        assert found != logprobs(Teacher(reference.executable, reference.limits), ids)
    finally:
        reference.adapters.unload(name)


def test_an_activated_adapter_acts_from_its_invocation_on(reference: Engine, tmp_path: Path) -> None:
    ids = reference.tokenizer.encode([PLAY])[0][:40]
    source, own = adapter_dir("shakespeare"), tmp_path / "activated"
    own.mkdir()
    config = json.loads((source / "adapter_config.json").read_text())
    config["alora_invocation_tokens"] = ids[20:23]
    (own / "adapter_config.json").write_text(json.dumps(config))
    (own / "adapter_model.safetensors").write_bytes((source / "adapter_model.safetensors").read_bytes())
    reference.adapters.load("late", str(own))
    try:
        hold = functools.partial(reference.adapters.held, "late")
        plain = logprobs(Teacher(reference.executable, reference.limits), ids)
        late = logprobs(Teacher(reference.executable, reference.limits, hold), ids)
        assert late[:20] == plain[:20] and late[20] != plain[20]
        assert logprobs(Teacher(reference.executable, reference.limits, hold), ids[:19]) == plain[:18]
    finally:
        reference.adapters.unload("late")


@pytest.mark.slow
def test_an_adapter_compared_with_itself_has_no_loss(measured: Callable[..., dict[str, Any]]) -> None:
    result = measured("--format", "f32", "--kv", "f32", "--set", "adapters.dtype=f32", "--lora", named("shakespeare"))
    one = result["adapters"][0]
    assert one["ppl_ratio"] == {"value": 1.0, "low": 1.0, "high": 1.0} and one["kl"]["max"] == 0.0
    assert one["greedy"]["identical"] == 1.0


@pytest.mark.slow
def test_the_loss_with_each_adapter_stands_beside_that_of_the_base(
    measured: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    alone = measured("--format", "int4-g64")
    capsys.readouterr()
    more = ["--lora", named("shakespeare"), "--lora", named("python"), "--report", str(page)]
    result = measured("--format", "int4-g64", *more)
    said = capsys.readouterr().out
    assert result["ppl_ratio"] == alone["ppl_ratio"] and result["kl"] == alone["kl"]  # of the base
    assert [one["name"] for one in result["adapters"]] == ["shakespeare", "python"]
    for one in result["adapters"]:
        assert f"with adapter {one['name']}, stored as int8" in said and one["bytes"] > 0
        assert one["ppl_ratio"]["low"] < one["ppl_ratio"]["value"] < one["ppl_ratio"]["high"]
        assert 0 < one["kl_interval"]["low"] < one["kl"]["mean"] < one["kl_interval"]["high"]
        assert one["kl"] != result["kl"]
    base, poet, coder = (one["perplexity"]["reference"] for one in (result, *result["adapters"]))
    assert poet < base < coder  # the text is a play
    assert "With adapters" in page.read_text() and "with shakespeare" in page.read_text()


@pytest.mark.slow
def test_a_missed_gate_names_the_adapter(
    measured: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--format", "int8-row", "--lora", named("python"), "--gate", "kl<=1e-9,bytes<=100000000"]
    result = measured(*words, status=1)
    said = capsys.readouterr().err
    assert "gate kl<=1e-09 with adapter python: missed" in said and "gate bytes<=1e+08: kept" in said
    assert [one["gate"] for one in result["adapters"][0]["gates"]] == ["kl<=1e-09"]  # the model has the bytes


@pytest.mark.slow
def test_the_reference_may_run_at_bf16(measured: Callable[..., dict[str, Any]]) -> None:
    same = ["--format", "bf16", "--kv", "f16", "--set", "adapters.dtype=bf16", "--lora", named("shakespeare")]
    result = measured("--ref-format", "bf16", *same)
    assert result["reference"]["run_as"] == "bf16" and set(result["reference"]["formats"].values()) >= {"bf16"}
    assert result["kl"]["max"] == result["adapters"][0]["kl"]["max"] == 0.0
    exact = measured(*same)
    assert exact["reference"]["run_as"] == "f32" and 0 < exact["kl"]["mean"] < 1e-2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--lora", "a"], "it is not name=path"),
        (["--lora", "a=/x", "--lora", "a=/y"], "a name is given twice"),
        (["--lora", "a=/no/such/adapter"], "/no/such/adapter"),
        (["--lora", "base=/x"], "base"),
    ],
)
def test_an_adapter_that_cannot_be_used_is_named(
    words: list[str], why: str, play: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quality", DEMO, DEMO, "--texts", str(play), "--tokens", "80", "--context", "16", *words]) != 0
    assert why in capsys.readouterr().err


@pytest.mark.slow
def test_tasks_are_answered_with_the_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "gsm8k.jsonl", tmp_path / "result.json"
    questions = [{"question": f"How many are {n} and {n}?", "answer": f"Together.\n#### {2 * n}"} for n in (1, 2)]
    data.write_text("".join(json.dumps(one) + "\n" for one in questions))
    call = ["quality", "tasks", DEMO, "--format", "int8-row", "--against", DEMO, "--task", "gsm8k", "-t", "1"]
    call += ["--data", str(data), "--json", str(out)]
    assert main(call) == 0
    base = json.loads(out.read_text())
    assert main([*call, "--lora", named("python")]) == 0
    adapted = json.loads(out.read_text())
    assert "adapter" not in base and adapted["adapter"]["name"] == "python"
    assert adapted["gold_nll"] != base["gold_nll"]
    assert [one["answer"] for one in adapted["items"]] != [one["answer"] for one in base["items"]]
    assert "questions with adapter python" in capsys.readouterr().out
    assert main([*call, "--lora", named("python"), "--lora", named("shakespeare")]) == 2
    assert "give one" in capsys.readouterr().err
