"""`infeng run --lora --adapter`: the choice of the adapter, and errors about ambiguous ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_adapter

from infeng_core.cli import main

GREEDY = ["--temperature", "0", "-n", "8", "--ignore-eos", "-t", "1"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name two adapters."""
    root = tmp_path_factory.mktemp("two")
    paths = [tiny_adapter.write(root / name, seed) for seed, name in enumerate("ab")]
    return ["--lora", f"a={paths[0]}", "--lora", f"b={paths[1]}"]


def run(capsys: Capture, tiny: Path, *arguments: str) -> Any:
    """Return what ``--json`` prints."""
    assert main(["run", str(tiny), *arguments, "--json", *GREEDY]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_single_adapter_is_used_by_default(tiny: Path, two: list[str], capsys: Capture):
    base = run(capsys, tiny, "-p", "the quick")
    with_a = run(capsys, tiny, "-p", "the quick", *two[:2])
    assert (base["adapter"], with_a["adapter"]) == ("base", "a")
    assert with_a["text"] != base["text"]
    assert main(["run", str(tiny), "-p", "the quick", *two[:2], *GREEDY]) == 0
    out, err = capsys.readouterr()
    assert out == with_a["text"]
    assert "adapter a loaded in" in err
    unchosen = run(capsys, tiny, "-p", "the quick", *two[:2], "--adapter", "base")
    assert (unchosen["adapter"], unchosen["text"]) == ("base", base["text"])


def test_a_folder_of_adapters_is_named_once(tiny: Path, two: list[str], capsys: Capture):
    folder = str(Path(two[1].partition("=")[2]).parent)
    named = run(capsys, tiny, "-p", "the quick", *two, "--adapter", "b")
    found = run(capsys, tiny, "-p", "the quick", "--adapters-dir", folder, "--adapter", "b")
    assert (found["adapter"], found["text"]) == ("b", named["text"])
    assert run(capsys, tiny, "-p", "the quick", "--adapters-dir", folder)["adapter"] == "base"
    by_setting = run(capsys, tiny, "-p", "the quick", "--set", f"adapters.directory={folder}", "--adapter", "b")
    assert by_setting["text"] == named["text"]
    assert main(["run", str(tiny), "-p", "x", "--adapters-dir", folder, "--adapter", "nobody", *GREEDY]) == 2
    assert "no adapter of that name" in capsys.readouterr().err


def test_each_prompt_may_have_its_own(tiny: Path, two: list[str], capsys: Capture):
    prompts = ["-p", "x", "-p", "x", "-p", "x", "-p", "x"]
    chosen = ["--adapter", "base", "--adapter", "b", "--adapter", "a*2,b", "--adapter", "a"]
    facts = run(capsys, tiny, *prompts, *two, *chosen)
    assert [fact["adapter"] for fact in facts] == ["base", "b", "a*2,b", "a"]
    assert len({fact["text"] for fact in facts}) == 4
    alone = run(capsys, tiny, "-p", "x", *two, "--adapter", "a*2,b")
    assert alone["text"] == facts[2]["text"]
    for_all = run(capsys, tiny, "-p", "x", "-p", "x", *two, "--adapter", "b")
    assert [fact["text"] for fact in for_all] == [facts[1]["text"]] * 2


def test_a_scale_of_0_gives_the_bases_answer(tiny: Path, two: list[str], capsys: Capture):
    base = run(capsys, tiny, "-p", "the quick")
    none = run(capsys, tiny, "-p", "the quick", "--lora", f"{two[1]}:0")
    half = run(capsys, tiny, "-p", "the quick", "--lora", f"{two[1]}:0.5")
    assert (none["adapter"], none["text"]) == ("a", base["text"])
    assert half["text"] == run(capsys, tiny, "-p", "the quick", *two[:2], "--adapter", "a*0.5")["text"]


def test_a_manifest_may_name_adapters(tiny: Path, two: list[str], capsys: Capture, tmp_path: Path):
    manifest = tmp_path / "engine.yaml"
    name, path = two[1].split("=")
    (tmp_path / "mine").symlink_to(path)
    manifest.write_text(f"infeng: 1\nadapters: {{paths: {{{name}: mine}}, warm: [{name}]}}\n")
    base = run(capsys, tiny, "-p", "x", "--manifest", str(manifest))
    with_a = run(capsys, tiny, "-p", "x", "--manifest", str(manifest), "--adapter", "a")
    assert (base["adapter"], with_a["adapter"]) == ("base", "a")
    assert with_a["text"] == run(capsys, tiny, "-p", "x", *two[:2])["text"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--lora", "a"], "--lora a: it is not name=path"),
        (["--lora", "=x"], "it is not name=path"),
        (["--lora", "a=no/such/place/here"], "adapter a: no/such/place/here is not there"),
        (["--lora", "base=."], "it means the base model"),
        (["--lora", "../a=."], "characters that a name may not have"),
        (["--lora", "a=.:nan"], "nan is no scale"),
        (["--lora", "a=.", "--lora", "a=.", "--adapter", "a"], "there is an adapter of that name"),
        (["--lora", "a=.", "--lora", "a=.."], "there is an adapter of that name: choose another name"),
        (["--lora", "a=.", "--lora", "b=."], "2 adapters are given and none is chosen: add --adapter a"),
        (["--adapter", "a"], "load it with engine.adapters.load, or --lora NAME=PATH"),
        (["--lora", "a=.", "--adapter", "b"], "adapter 'b': no adapter of that name is loaded: known here: a"),
        (["--lora", "a=.", "--adapter", "a*x"], "'x' is not a number"),
        (["--lora", "a=.", "--adapter", "a*"], "is not a name, or a name and its weight"),
        (["--lora", "a=.", "--adapter", "a,base"], "the base is under every adapter"),
        (["--lora", "a=.", "--adapter", "a,a"], "named twice"),
        (["--lora", "a=.", "--adapter", "a", "--adapter", "a"], "2 are given for 1 prompts"),
    ],
)
def test_an_ambiguous_choice_of_adapters_is_an_error(tiny: Path, arguments: list[str], text: str, capsys: Capture):
    assert main(["run", str(tiny), "-p", "x", *arguments, *GREEDY]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err


def test_a_directory_without_an_adapter_is_named(tiny: Path, capsys: Capture, tmp_path: Path):
    assert main(["run", str(tiny), "-p", "x", "--lora", f"a={tmp_path}", *GREEDY]) == 1
    [line] = [line for line in capsys.readouterr().err.splitlines() if str(tmp_path) in line]  # said once
    assert line.startswith("infeng: error: ")
