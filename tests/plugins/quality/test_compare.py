"""Models compared: the demo model with itself, in other formats, and with a known fault."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import write

pytest.importorskip("infeng_quality", reason="the quality wheel is not installed")
pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

from infeng_demo import model_dir
from infeng_quality import by_tensor, compare, gates, models, texts
from infeng_quality.scoring import Scores
from infeng_quality.teacher import Teacher

from infeng_core.api import Engine, ModelError, UsageError
from infeng_core.cli import main

DEMO = str(model_dir())
STORY = (
    "Once upon a time there was a little girl named Lily. She liked to play in the park with her dog. One day the dog "
    "found a big red ball under a tree. Lily was very happy and they played with the ball until it was dark.\n"
)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "story.jsonl"
    words = STORY.split()
    lines = [{"text": " ".join(words[at:] + words[:at])} for at in range(0, 40, 5)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def reference() -> Iterator[Engine]:
    with models.open_reference(DEMO, 1) as engine:
        yield engine


@pytest.fixture(scope="module")
def measured(reference: Engine, story: Path) -> Callable[..., dict[str, Any]]:
    """Return ``measured(candidate, "--option", ..., setting=value)``: the result of a comparison with ``reference``."""

    def measure(candidate: str | Path, *words: str, **settings: object) -> dict[str, Any]:
        parser = argparse.ArgumentParser()
        compare.configure(parser)
        given = [DEMO, str(candidate), "--context", "32", "--tokens", "250", "--texts", str(story), *words]
        arguments = parser.parse_args(given)
        dotted = {"threads.count": 1, **{name.replace("__", "."): value for name, value in settings.items()}}
        return compare.measured(reference, str(candidate), dotted, [texts.read(story)], arguments)

    return measure


@pytest.mark.slow
def test_a_text_scored_in_portions_has_the_logprobs_of_the_engine(reference: Engine) -> None:
    ids = reference.tokenizer.encode([STORY])[0][:60]
    rows = []
    for rows_of_step in (7, 128):
        teacher = Teacher(reference.executable, replace(reference.limits, max_rows=rows_of_step))
        rows.append(np.concatenate([logits.copy() for _, logits in teacher.logits(ids)]))
    assert rows[0].tobytes() == rows[1].tobytes()
    known = reference.score(ids[:1], ids[1:])
    x = rows[0].astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    assert [one.logprob for one in known] == [float(x[at, token]) for at, token in enumerate(ids[1:])]


def test_a_model_compared_with_itself_has_no_loss(measured: Callable[..., dict[str, Any]]) -> None:
    result = measured(DEMO, **{name.replace(".", "__"): value for name, value in models.EXACT.items()})
    compare.judge(result, gates.parse("ppl_ratio<=1,kl<=0,top1>=1,kl.max<=0,greedy>=64"))
    assert all(gate["passed"] for gate in result["gates"])
    assert result["ppl_ratio"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert result["kl"] == {"mean": 0.0, "median": 0.0, "p99": 0.0, "max": 0.0}
    assert result["top1"] == 1.0
    assert result["bytes"] == result["reference_bytes"]


@pytest.mark.slow
def test_int8_against_f32_is_measured_with_a_page_and_a_history(
    story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, history, out = tmp_path / "page.html", tmp_path / "history.jsonl", tmp_path / "result.json"
    words = [DEMO, DEMO, "--format", "int8-row", "--texts", story, "--tokens", "300", "--context", "32", "-t", "1"]
    words += ["--json", out, "--report", page, "--history", history, "--gate", "ppl_ratio<=1.05,top1>=0.9999"]
    status = main(["quality", *map(str, words)])
    said, result = capsys.readouterr(), json.loads(out.read_text())
    assert status == 1
    assert re.search(r"gate top1>=0.9999: missed, the value is 0\.9\d*, its 95% bound 0\.9\d*\n", said.err)
    assert "rough" in said.err  # of few blocks
    assert said.out.startswith("int8-row, cache int8 against f32: ")
    ratio, kl = result["ppl_ratio"], result["kl"]
    assert 0.97 < ratio["low"] < ratio["value"] < ratio["high"] < 1.03
    assert 0 < kl["median"] < kl["mean"] < kl["p99"] <= kl["max"] < 1
    assert result["kl_interval"]["low"] < kl["mean"] < result["kl_interval"]["high"] < 0.02
    assert 0.9 < result["top1_interval"]["low"] <= result["top1"] < 1
    assert result["bytes"] < 0.3 * result["reference_bytes"]
    assert result["tokens"] == 300  # and not the last window's end
    assert result["tokens"] == sum(result["kl_histogram"]["counts"]) == sum(one["tokens"] for one in result["texts"])
    worst = [one["kl"] for one in result["worst_documents"]]
    assert worst == sorted(worst, reverse=True)
    assert result["schema"] == "infeng-quality/1"
    assert json.loads(history.read_text())["ppl_ratio"] == ratio
    html = page.read_text()
    assert not re.search(r"<(script|link|img)|(src|href)\s*=|url\(|@import", html)  # nothing to download
    assert "prefers-color-scheme: dark" in html
    for chart in re.findall(r"<figure>.*?</figure>", html):
        ElementTree.fromstring(chart)


@pytest.mark.slow
def test_one_quantized_tensor_loses_less_than_all(measured: Callable[..., dict[str, Any]]) -> None:
    result = measured(DEMO, "--by-tensor", "--by-tensor-tokens", "100", model__format="int8-row")
    assert result["by_tensor_tokens"] == 100
    named = {line["tensor"] for line in result["by_tensor"]}
    assert named == {"embed", "kv_cache", *(f"layers.*.{part}_proj" for part in ("qkv", "o", "gate_up", "down"))}
    costs = [line["kl"]["value"] for line in result["by_tensor"]]
    assert costs == sorted(costs, reverse=True)
    assert 0 < costs[-1] < costs[0] < result["kl"]["mean"]
    assert 0.3 * result["kl"]["mean"] < sum(costs) < 3 * result["kl"]["mean"]
    stored = sum(line.get("bytes", 0) for line in result["by_tensor"])
    assert stored == sum(result["candidate"]["bytes_by_format"].values())


def test_by_tensor_refuses_two_different_models(reference: Engine) -> None:
    model = reference.model
    vectors = {name: one + 1 for name, one in model.vectors.items()}
    with pytest.raises(UsageError, match="not those of the reference"):
        by_tensor.check(model, replace(model, vectors=vectors))
    by_tensor.check(model, model)


def test_a_known_fault_is_detected_and_traced_to_its_tensor(reference: Engine) -> None:
    name = "layers.0.down_proj"
    tensor = reference.model.tensors[name]
    memory = np.zeros(tensor.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64  # where kernels may read
    broken = tensor.holding(memory[begin : begin + tensor.nbytes], name)
    model = replace(reference.model, tensors={**reference.model.tensors, name: broken})
    ids = reference.tokenizer.encode([STORY])[0]
    windows = texts.windows(ids, 1, 24, 0, 0)
    ours = Teacher(reference.executable, reference.limits)
    with by_tensor._running(reference, model, reference.config) as theirs:
        found = Scores.of(ours, theirs, windows, lambda _: None).figures(200, 0)
    assert found["kl_interval"]["low"] > 0.05
    assert found["ppl_ratio"]["low"] > 1.02


def test_logits_that_are_not_finite_end_the_comparison(reference: Engine) -> None:
    class Broken:
        def logits(self, ids: list[int]) -> Iterator[tuple[int, np.ndarray]]:
            yield 0, np.full((len(ids), 4096), np.nan, np.float32)

    windows = texts.windows(reference.tokenizer.encode([STORY])[0][:9], 1, 24, 0, 5)
    with pytest.raises(ModelError, match="the logits of document 5 are not finite"):
        Scores.of(Teacher(reference.executable, reference.limits), Broken(), windows, print)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_manifest_can_be_a_candidate_for_the_references_model(tmp_path: Path) -> None:
    manifest = tmp_path / "engine.yaml"
    manifest.write_text("infeng: 1\nmodel: {format: f32, formats: {}}\nkv_cache: {dtype: f16}\n")
    with models.open_candidate(str(manifest), DEMO, {"threads.count": 1}) as engine:
        facts = models.facts(engine, str(manifest))
    assert facts["kv_dtype"] == "f16"
    assert set(facts["formats"].values()) == {"f32"}
    with pytest.raises(UsageError, match="names no model"):
        models.open_candidate(str(manifest), str(manifest), {})


@pytest.mark.slow
def test_another_vocabulary_or_tokenizer_is_refused(measured: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="vocabulary of"):
        measured(write(tmp_path / "tiny"))
    other = shutil.copytree(DEMO, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:100]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UsageError, match=r"document 0 of story\.jsonl has other tokens"):
        measured(other)


@pytest.mark.parametrize("most", [1, 31, 32, 40, 63, 64, 1000])
def test_a_limit_on_tokens_is_met_exactly(most: int) -> None:
    windows = texts.windows(range(64), None, 32, 0, 0) + texts.windows(range(3), None, 32, 0, 1)
    found = texts.first_tokens(windows, most)
    assert sum(one.predicted for one in found) == min(most, 31 + 31 + 2)
    assert all(
        one.predicted > 0 and one.ids == whole.ids[: len(one.ids)] for one, whole in zip(found, windows, strict=False)
    )


def blocks_of(*documents: tuple[int, int]) -> list[int]:
    """Return the blocks of documents of so many windows of so many tokens, the last in a text of its own."""
    windows = [
        texts.Window(int(number == len(documents) - 1), number, part, (0,) * (tokens + 1))
        for number, (count, tokens) in enumerate(documents)
        for part in range(count)
    ]
    return Scores(windows, np.zeros((len(windows), 4)), np.zeros(1)).blocks().tolist()


def test_blocks_hold_whole_documents_if_there_are_many_and_never_span_two_texts() -> None:
    assert blocks_of(*[(3, 400)] * 31)[:9] == [0, 0, 0, 1, 1, 1, 2, 2, 2]  # 1,200 tokens each, of 37,200
    assert blocks_of((4, 30_000), (1, 30_000)) == [0, 1, 2, 3, 4]
    assert blocks_of(*[(1, 40)] * 100, (1, 7))[-3:] == [98, 99, 100]
    assert blocks_of((1, 5), (1, 5)) == [0, 1]


def test_one_window_gives_no_interval() -> None:
    windows = texts.windows(list(range(9)), None, 24, 0, 0)
    with pytest.raises(UsageError, match="no interval"):
        Scores(windows, np.ones((1, 4)), np.ones(8)).figures(100, 0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--texts", "/nowhere"], "no such file"),
        (["--gate", "foo<=1"], "no such figure"),
        (["--context", "1"], "predicts nothing"),
        (["--json", "/nowhere/a.json"], "its folder is not there"),
    ],
)
def test_a_usage_error_is_one_line(
    words: list[str], says: str, story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [] if "--texts" in words else ["--texts", str(story)]
    assert main(["quality", DEMO, DEMO, "-t", "1", *given, *words]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_help_lists_the_verbs_and_a_call_without_one_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quality", "-h"]) == 0
    assert main(["quality"]) == 2
    assert "infeng quality nightly REF CANDIDATE" in capsys.readouterr().out
