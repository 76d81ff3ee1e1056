"""Folders of adapters, converted at once: the others are packed where one fails, and each error has its name."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import tiny_adapter
import tiny_model

from infeng_core import Engine, SamplingParams
from infeng_core.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("base"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two adapters, and what cannot be converted."""
    made = tmp_path / "many"
    for seed, name in enumerate(("a", "b")):
        tiny_adapter.write(made / name, seed)
    shutil.copytree(made / "a", made / "broken")
    (made / "broken" / "adapter_model.safetensors").write_bytes(b"none")
    (made / "empty").mkdir()
    (made / "out").symlink_to(tmp_path)
    (made / "note.txt").write_text("none")
    return made


def test_all_but_the_broken_ones_are_packed(folder: Path, tiny: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "packed"
    words = ["convert-adapter", str(folder), "--out", str(out), "--model", str(tiny)]
    assert main(words) == 1
    told = capsys.readouterr()
    assert f"{out}: 2 packed, 0 there already, 2 failed; " in told.out
    lines = [line for line in told.err.splitlines() if line.startswith("infeng: ")]
    assert [line.split(": ")[1] for line in lines] == ["broken", "empty"], "a link out of the folder is none of it"
    assert "adapter_model.safetensors" in lines[0] and "holds no adapter" in lines[1]
    assert sorted(path.name for path in out.iterdir()) == ["a", "b"]
    assert main([*words, "--json"]) == 1
    again = json.loads(capsys.readouterr().out)
    assert {name: made["reused"] for name, made in again["adapters"].items()} == {"a": True, "b": True}
    assert again["failed"].keys() == {"broken", "empty"}


@pytest.mark.slow
def test_packed_ones_answer_as_their_sources(folder: Path, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    words = [str(folder / "a"), str(folder / "b"), "--out", str(out), "--model", str(tiny)]
    assert main(["convert-adapter", *words]) == 0
    told = []
    for place in (folder, out):
        with Engine(tiny, threads=1, overrides={"adapters.directory": [str(place)]}) as engine:
            answers = engine.generate(["x"] * 2, SamplingParams(temperature=0.0, max_tokens=6), adapters=["a", "b"])
            told.append([answer.token_ids for answer in answers] + [engine.adapters["a"].id])
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["{many}"], "1 are given, and two are expected: PEFT DEST"),
        (["{many}/a", "{many}/b", "{many}/c"], "3 are given"),
        (["{many}", "{many}/a", "--out", "{tmp}/o"], "has the same name: convert them into two folders"),
        (["{tmp}/bare", "--out", "{tmp}/o"], "holds no adapter, and no folder that could be one"),
    ],
)
def test_what_cannot_be_meant_is_said_before_anything_is_written(
    folder: Path, tiny: Path, tmp_path: Path, capsys: Capture, words: list[str], why: str
) -> None:
    (tmp_path / "bare").mkdir()
    os.mkfifo(tmp_path / "bare" / "pipe")
    given = [word.format(many=folder, tmp=tmp_path) for word in words]
    assert main(["convert-adapter", *given, "--model", str(tiny)]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
