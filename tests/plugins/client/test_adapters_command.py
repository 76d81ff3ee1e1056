"""`infeng adapters`: the adapters of a running server, from the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_openai import FakeServer

pytest.importorskip("infeng_client", reason="the client wheel is not installed")
pytest.importorskip("infeng_serve", reason="the server's wheel is not installed")

from infeng_demo import adapter_dir
from infeng_serve.auth import Keys
from serve_parts import Running, running

from infeng_core.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with one key, an admin's, and the adapters bard and coder."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("root-key ops * admin\n")
    with running(keys=Keys(file=keys)) as found:
        yield found


def ask(served: Running, *words: str) -> int:
    verb, *rest = words
    return main(["adapters", verb, served.url, *rest, "--api-key", "root-key"])


def test_an_adapter_is_loaded_reloaded_and_unloaded(served: Running, tmp_path: Path, capsys: Capture):
    folder = shutil.copytree(adapter_dir("python"), tmp_path / "mine")
    assert ask(served, "load", "mine", str(folder), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "done": "load",
        "name": "mine",
        "path": str(folder),
        "base": "model",
    }
    before = served.engine.adapters["mine"].id
    shutil.copytree(adapter_dir("shakespeare"), folder, dirs_exist_ok=True)
    assert ask(served, "reload", "mine") == 0
    assert capsys.readouterr().out == "mine: reloaded\n"
    served.engine.adapters.load("bard-again", str(adapter_dir("shakespeare")), pin=True)
    after = served.engine.adapters["mine"]
    assert before != after.id == served.engine.adapters["bard-again"].id
    assert ask(served, "reload", "mine", str(adapter_dir("python"))) == 0
    assert capsys.readouterr().out == "mine: reloaded\n"
    assert served.engine.adapters["mine"].id == before, "other files under the same name"
    assert ask(served, "unload", "mine") == 0
    assert capsys.readouterr().out == "mine: unloaded\n"
    assert "mine" not in served.engine.adapters


def test_the_list_has_each_adapter_and_not_the_base(served: Running, capsys: Capture):
    assert ask(served, "list") == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["bard", "coder"]
    assert ask(served, "list", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found] == names and found[0]["path"] == str(adapter_dir("shakespeare"))


def test_unknown_and_refused_adapters_are_errors(served: Running, capsys: Capture):
    assert ask(served, "unload", "brad") == 2
    assert "adapter brad: the server has none of this name: did you mean `bard`?" in capsys.readouterr().err
    assert ask(served, "load", "new", "/nowhere") == 2
    assert "/nowhere is not there" in capsys.readouterr().err
    assert main(["adapters", "list", served.url]) == 1
    assert "give --api-key KEY, or set INFENG_API_KEY" in capsys.readouterr().err


def test_the_key_may_come_from_the_environment(server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture):
    monkeypatch.setenv("INFENG_API_KEY", "k")
    assert main(["adapters", "load", server.url, "poet", "/adapters/poet"]) == 0
    assert {seen.headers["authorization"] for seen in server.seen} == {"Bearer k"}
    assert server.seen[0].body == {"lora_name": "poet", "lora_path": "/adapters/poet"}
    assert main(["adapters", "reload", server.url, "poet", "elsewhere"]) == 0
    assert server.seen[-1].body == {"lora_name": "poet", "lora_path": "elsewhere", "load_inplace": True}
    assert capsys.readouterr().out == "poet: loaded\npoet: reloaded\n"
