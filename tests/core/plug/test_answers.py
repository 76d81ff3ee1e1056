"""Hooks that a plugin declares for others: which plugins are called, and invalid answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from infeng_core.plug.assembly import load_config
from infeng_core.plug.hookspecs import DRAFTERS
from infeng_core.plug.manager import Plugins
from infeng_core.plug.markers import hookspec


@hookspec
def infeng_test_words(settings: Mapping[str, Any]) -> dict[str, int]:  # type: ignore[empty-body]
    """Return lengths by words."""


def plugin(folder: Path, name: str, value: str, provides: str = "{hooks: [infeng_test_words]}") -> Path:
    package = folder / f"plug_{name}"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from infeng_core.api import hookimpl\n@hookimpl(optionalhook=True)\n"
        f"def infeng_test_words(settings):\n    return {value}\n"
    )
    file = package / "plugin.yaml"
    head = f"infeng_plugin: 1\nname: {name}\nversion: 1\npython: plug_{name}\n"
    file.write_text(f"{head}settings: {{size: {{type: int, default: 3}}}}\nprovides: {provides}\n")
    return file


def plugins_of(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> Plugins:
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Plugins.discover(load_config(overrides={"plugins.paths": [str(path) for path in paths]}))


def test_plugins_that_list_the_hook_are_called_with_their_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = [
        plugin(tmp_path, "first", "{'a': settings['size']}"),
        plugin(tmp_path, "second", "{'b': 4}"),
        plugin(tmp_path, "silent", "{'c': 5}", "{}"),
    ]
    found = plugins_of(monkeypatch, *files)
    assert found.answers(infeng_test_words) == {"first": {"a": 3}, "second": {"b": 4}}
    assert found.answers(infeng_test_words) == {"first": {"a": 3}, "second": {"b": 4}}
    assert "plug_silent" not in sys.modules


def test_a_plugin_with_an_invalid_answer_causes_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    files = [plugin(tmp_path, "wrong", "{'a': 'three'}"), plugin(tmp_path, "right", "{'b': 4}")]
    assert plugins_of(monkeypatch, *files).answers(infeng_test_words) == {"right": {"b": 4}}
    said = capsys.readouterr().err
    assert "plugin wrong is not used" in said and "has an entry 'a' that is 'three', not int" in said


def test_an_undeclared_hook_does_not_disable_a_plugins_other_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = plugin(tmp_path, "both", "{}", "{hooks: [infeng_test_words], drafters: [both]}")
    code = path.with_name("__init__.py")
    code.write_text(code.read_text() + "@hookimpl\ndef infeng_drafters(settings):\n    return {'both': print}\n")
    assert plugins_of(monkeypatch, path).get(DRAFTERS, "both")
