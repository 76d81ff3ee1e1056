"""Prompts of sets and files."""

import gzip
import json
from itertools import islice
from pathlib import Path

import pytest
from infeng_bench.load import prompts
from infeng_peers import prompt_texts

from infeng_core.errors import UsageError


def lines(path: Path, *entries: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def test_known_sets_are_found_in_the_folder_and_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines(tmp_path / "HumanEval.jsonl.gz", {"task_id": "1", "prompt": "def f():"}, {"prompt": "def g():"})
    lines(tmp_path / "eval" / "gsm8k_test.jsonl", {"question": "How many?", "answer": "5"})
    lines(tmp_path / "more" / "specbench.jsonl", {"turns": ["first", "second"]})
    assert prompt_texts.texts("humaneval", str(tmp_path)) == ["def f():", "def g():"]
    monkeypatch.setenv(prompts.VARIABLE, str(tmp_path))
    assert prompt_texts.texts("gsm8k", None) == ["How many?"]
    assert prompt_texts.texts("specbench", None) == ["first"]


def test_a_file_of_prompts_is_found_by_its_path(tmp_path: Path) -> None:
    assert prompt_texts.texts(str(lines(tmp_path / "own.jsonl", {"text": "x"}, {"instruction": "y"})), None) == [
        "x",
        "y",
    ]
    plain = tmp_path / "plain.txt"
    plain.write_text("one\n\ntwo\n")
    assert prompt_texts.texts(str(plain), None) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("bad.jsonl", b"{", "bad.jsonl:1: not JSON"),
        ("bad.jsonl", b'{"prompt": "x"}\n[1]\n', "bad.jsonl:2: it has no prompt"),
        ("bad.jsonl", b'{"prompt": 5}\n', "name it prompt or question"),
        ("bad.jsonl.gz", b"no gzip", "cannot be read as text"),
        ("bad.txt", b"\xff\xfe\xfa", "cannot be read as text"),
        ("empty.txt", b"\n\n", "it has no prompt"),
    ],
)
def test_a_file_without_prompts_is_named(tmp_path: Path, name: str, content: bytes, text: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=text.replace(".", r"\.")):
        prompt_texts.texts(str(path), None)


def test_the_error_of_a_missing_set_names_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(prompts.VARIABLE, raising=False)
    with pytest.raises(UsageError, match=r"give --data DIR or set INFENG_BENCH_DATA"):
        prompt_texts.texts("gsm8k", None)
    with pytest.raises(UsageError, match=r"has no gsm8k_test\.jsonl"):
        prompt_texts.texts("gsm8k", str(tmp_path))
    with pytest.raises(UsageError, match=r"(?i)did you mean `gsm8k`"):
        prompt_texts.texts("gsm8", str(tmp_path))


def test_every_prompt_is_used_once_before_any_repeats() -> None:
    found = list(islice(prompt_texts.shuffled([[1], [2], [3]], seed=5), 6))
    assert sorted(found[:3]) == sorted(found[3:]) == [[1], [2], [3]]
    assert found == list(islice(prompt_texts.shuffled([[1], [2], [3]], seed=5), 6))
    assert str(prompt_texts.random_lengths("random:5:9")) == "5:9"
    assert prompt_texts.random_lengths("gsm8k") is None
