"""`infeng bench drafts`: given answers through real engines, with figures that belong together."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import tiny_model
from infeng_bench.engine.replay import Replay
from infeng_bench.engine.running import greedy
from infeng_bench.load.draft_texts import TEXTS
from infeng_bench.reports import results

from infeng_core.api import Engine, Request
from infeng_core.cli import main

pytest.importorskip("infeng_suffix", reason="the suffix wheel is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small sets in the form of the known ones."""
    data = tmp_path / "data"
    data.mkdir()
    lines = [
        {"prompt": f"def add_{i}(a, b):\n", "canonical_solution": f"    total = a + b + {i}\n    return total\n"}
        for i in range(6)
    ]
    with gzip.open(data / "HumanEval.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    codes = [{"text": "x", "code": f"def twice_{i}(a):\r\n    return 2 * a + {i}"} for i in range(6)]
    (data / "mbpp.jsonl").write_text("".join(json.dumps(line) + "\n" for line in codes))
    words = np.random.default_rng(0).permuted(np.tile(np.arange(60), (8, 5)), axis=1)
    (data / "tinystories.txt").write_text("\n".join(" ".join(f"w{word}" for word in row) for row in words))
    return data


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model.write(tmp_path / "model", tiny_model.Shape(max_positions=4096))


def run(model: Path, folder: Path, *arguments: str) -> int:
    return main(["bench", "drafts", str(model), "-t", "1", "--data", str(folder), *arguments])


@pytest.mark.slow
def test_drafters_are_measured_in_turn_on_the_same_answers(model: Path, folder: Path, tmp_path: Path, capsys: Any):
    out = tmp_path / "out.json"
    asked = ("--pairs", "1", "--requests", "1", "--speculate", "none,ngram:2,suffix", "--json", str(out))
    assert run(model, folder, *asked) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    jsonschema.validate(found, results.schema())
    lines = {(one["text"], one["drafter"]): one for one in found["measurements"]}
    assert list(lines) == [(text, name) for text in TEXTS for name in ("none", "ngram:2", "suffix")]
    for text in TEXTS:
        none, ngram, suffix = (lines[text, name] for name in ("none", "ngram:2", "suffix"))
        assert none["tokens"] == ngram["tokens"] == suffix["tokens"] > 50
        assert none["tokens_per_step"] == 1 and "acceptance" not in none
        assert suffix["over"]["none"]["ratio"] == pytest.approx(1 / none["over"]["suffix"]["ratio"])
        assert suffix["over"].keys() == {"none", "ngram:2"}
    assert 1 < lines["edits", "ngram:2"]["tokens_per_step"] <= 3
    assert lines["edits", "suffix"]["tokens_per_step"] > 1.5
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:4]] == [
        ["edits", name] for name in ("none", "ngram:2", "suffix")
    ]


def test_several_conversations_run_at_a_time(model: Path, folder: Path, tmp_path: Path):
    out = tmp_path / "out.json"
    asked = ("--pairs", "1", "--requests", "2", "--rows", "2", "--text", "edits", "--speculate", "none,suffix")
    assert run(model, folder, *asked, "--json", str(out)) == 0
    none, _ = json.loads(out.read_text())["measurements"]
    assert 1 < none["tokens_per_step"] <= 2


def test_a_replayed_answer_is_the_given_one_and_others_are_the_models(model: Path):
    rng = np.random.default_rng(0)
    given = rng.integers(2, 300, 40).tolist()
    with Engine(model, threads=1, speculate="suffix") as engine:
        [free] = engine.generate([Request((5, 6, 7), greedy(30))])
        replay = Replay(engine)
        replay.expect([9, 9, 9], given)
        replayed, other = engine.generate([Request((9, 9, 9), greedy(40)), Request((5, 6, 7), greedy(30))])
        assert list(replayed.token_ids) == given and other.token_ids == free.token_ids
        replay.restore()
        assert engine.generate([Request((9, 9, 9), greedy(40))])[0].token_ids != replayed.token_ids


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_those_of_a_seed_and_no_answer_but_the_call_of_a_test_comes_twice(folder: Path, text: str):
    once, again, other = (list(TEXTS[text](str(folder), seed)) for seed in (1, 1, 2))
    assert once == again != other
    answers = [turn.answer for conversation in once for turn in conversation if "run_tests" not in turn.answer]
    assert len({*answers}) == len(answers) > 2
    for conversation in once:
        for early, late in itertools.pairwise(conversation):
            assert late.prompt.startswith(early.prompt + early.answer), "a turn has the earlier ones before it"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--text", "edit"], "did you mean `edits`"),
        (["--speculate", "none,sufix"], "did you mean `suffix`"),
        (["--speculate", "suffix:x"], "not a whole number"),
        (["--tokenizer", "nowhere"], "give a tokenizer.json or its folder"),
        (["--pairs", "99", "--text", "edits"], "ask for fewer --pairs or --requests"),
    ],
)
def test_what_cannot_be_measured_is_named(model: Path, folder: Path, words: list[str], message: str, capsys: Any):
    assert run(model, folder, "--requests", "1", "--pairs", "1", *words) != 0
    assert message in capsys.readouterr().err


def test_a_folder_without_the_sets_is_named(model: Path, tmp_path: Path, capsys: Any):
    assert run(model, tmp_path, "--text", "edits") != 0
    assert "HumanEval.jsonl.gz" in capsys.readouterr().err


def test_a_line_that_is_no_program_is_named(model: Path, folder: Path, capsys: Any):
    (folder / "mbpp.jsonl").write_text('{"text": 1}\n')
    assert run(model, folder, "--text", "edits") != 0
    assert "mbpp:1" in capsys.readouterr().err
