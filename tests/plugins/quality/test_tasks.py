"""Questions with right answers: what counts as one, and two models on the same questions."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("infeng_quality", reason="the quality wheel is not installed")
pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

from infeng_demo import model_dir
from infeng_quality.tasks.answering import Answered
from infeng_quality.tasks.kinds import TASKS, final_number, items, with_shots
from infeng_quality.tasks.verb import paired

from infeng_core.api import UsageError
from infeng_core.cli import main

DEMO = str(model_dir())
LINES: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "What is 2 + 3?", "answer": "2+3=<<2+3=5>>5\n#### 5"},
    "humaneval": {
        "task_id": "HumanEval/0",
        "prompt": "def add(a, b):\n",
        "canonical_solution": "    return a + b\n",
        "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n",
        "entry_point": "add",
    },
    "mbpp": {
        "task_id": 1,
        "text": "Add two numbers.",
        "code": "def add(a, b):\r\n  return a + b",
        "test_list": ["assert add(2, 3) == 5"],
        "test_setup_code": "",
    },
}


@pytest.fixture
def data(tmp_path: Path) -> Any:
    def write(*lines: object) -> str:
        path = tmp_path / "data.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(path)

    return write


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 7 apples\n#### 1,234", 1234),
        ("#### $12.50 each", Decimal("12.5")),
        ("#### -3", -3),
        ("it is 4, and then 18.", 18),
        ("18.00", 18),
        ("#### none, but 5", 5),
        ("nothing", None),
        ("", None),
    ],
)
def test_the_final_number_of_an_answer_is_found(text: str, number: object) -> None:
    assert final_number(text) == number


@pytest.mark.parametrize("name", sorted(TASKS))
def test_the_published_answer_is_right_and_another_is_wrong(name: str, data: Any) -> None:
    [item] = items(TASKS[name], data(LINES[name]))
    assert item.judge(item.gold) == "passed"
    assert item.judge(item.gold.replace("a + b", "a - b").replace("5", "6")) in ("wrong", "failed")
    assert not any(stop in item.gold for stop in TASKS[name].stop)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file"), [("gsm8k", "gsm8k_test.jsonl"), ("humaneval", "HumanEval.jsonl.gz"), ("mbpp", "mbpp.jsonl")]
)
def test_the_published_answers_of_the_published_files_are_right(name: str, file: str) -> None:
    path = Path(os.environ.get("INFENG_TEST_DATA", "/nowhere")) / "eval" / file
    if not path.is_file():
        pytest.skip("INFENG_TEST_DATA has no such file")
    found = items(TASKS[name], str(path), None if name == "gsm8k" else 40)
    assert [item.name for item in found if item.judge(item.gold) != "passed"] == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gsm8k", {"question": "?", "answer": "none"}),
        ("gsm8k", {"question": "?"}),
        ("gsm8k", [1]),
        ("humaneval", {**LINES["humaneval"], "test": 7}),
        ("mbpp", {"text": "?", "code": "x", "task_id": 1}),
        ("mbpp", {**LINES["mbpp"], "test_list": "assert"}),
    ],
)
def test_a_line_that_is_no_question_is_named(name: str, line: object, data: Any) -> None:
    path = data(LINES[name], line)
    with pytest.raises(UsageError, match=r"data\.jsonl:2"):
        items(TASKS[name], path)
    with pytest.raises(UsageError, match="no questions"):
        items(TASKS[name], data())


def test_questions_used_as_shots_are_not_asked(data: Any) -> None:
    read = items(TASKS["gsm8k"], data(LINES["gsm8k"], {"question": "b?", "answer": "7"}))
    [asked] = with_shots(read, 1)
    assert asked.prompt == f"{read[0].prompt}{read[0].gold}\n\nQuestion: b?\nAnswer:"
    with pytest.raises(UsageError, match="--shots"):
        with_shots(read, 2)


def test_nearly_equal_pairs_stay_unresolved_until_there_are_enough() -> None:
    def answered(solved: np.ndarray, nll: float) -> Answered:
        count = len(solved)
        reasons = ["passed" if one else "wrong" for one in solved]
        return Answered(
            [""] * count, reasons, np.linspace(5, 9, count) + nll, np.full(count, 10 if count < 1000 else 0)
        )

    few, many = np.arange(100) % 2 == 0, np.arange(20_000) % 2 == 0
    found = paired(answered(few, 0.0), answered(few, 0.5), 0.01)
    assert found["verdict"] == "unresolved"
    assert found["gold_nll_difference"]["value"] == pytest.approx(0.05)
    assert found["gold_nll_difference"]["low"] > 0.049  # the likelihoods tell what the answers do not
    assert paired(answered(many, 0), answered(many, 0), 0.01)["verdict"] == "resolved"
    lost = paired(answered(few, 0), answered(few & (np.arange(100) > 30), 0), 0.01)
    assert (lost["gained"], lost["lost"], lost["verdict"]) == (0, 16, "resolved")


@pytest.mark.slow
def test_the_demo_model_is_asked_and_compared(
    data: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "mbpp", replace(TASKS["mbpp"], max_tokens=8))
    path, out = data(*[LINES["mbpp"]] * 2, {**LINES["mbpp"], "text": "word " * 1100}), tmp_path / "out.json"
    words = ["tasks", DEMO, "--task", "mbpp", "--data", path, "--against", DEMO, "-t", "1", "--json", str(out)]
    assert main(["quality", *words]) == 0
    assert "unresolved: more questions are needed" in capsys.readouterr().out
    result = json.loads(out.read_text())
    assert result["questions"] == len(result["items"]) == 3
    assert result["items"][2]["reason"] == "too long"
    assert result["items"][2]["gold_nll"] is None
    assert result["gold_nll"] > 0
    assert result["paired"]["mcnemar_p"] == 1.0
    assert result["items"][0] == result["items"][1]
