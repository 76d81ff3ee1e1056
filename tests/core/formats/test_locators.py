"""Names of models other than paths: plugins' locators come before the hub."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from infeng_core.errors import PluginError, UsageError
from infeng_core.formats.adapters.load import find_adapter
from infeng_core.formats.loader import find
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins

CODE = """
from pathlib import Path
from infeng_core.api import hookimpl

class Store:
    def locate(self, reference, kind):
        if not reference.startswith("store://"):
            return None
        {answer}
    def refuse(self, reference, files):
        pass

@hookimpl
def infeng_locators():
    return {{"store": Store()}}
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return the plugins, among them one whose locator answers by a line of code, in a folder of its own."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def install(name: str, answer: str) -> Plugins:
        (tmp_path / f"{name}.py").write_text(CODE.format(answer=answer))
        yaml = tmp_path / f"{name}.yaml"
        yaml.write_text(
            f"infeng_plugin: 1\nname: {name}\nversion: 1\npython: {name}\nprovides: {{locators: [store]}}\n"
        )
        return Plugins.discover(load_config(overrides={"plugins.paths": [str(yaml)]}))

    return install


def test_a_plugins_locator_resolves_its_names(installed, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    plugins = installed("located", f"return Path({str(tmp_path)!r}) / kind")
    assert find("store://tiny", plugins) == tmp_path / "model"
    assert find_adapter("store://tiny", plugins)[0] == tmp_path / "adapter"


def test_a_name_of_no_locator_is_a_usage_error(installed) -> None:
    with pytest.raises(UsageError, match=r"^shelf://tiny: no such model directory"):
        find("shelf://tiny", installed("unasked", "return None"))


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("texts", "return 'somewhere'", r"the result of locate\(\) is 'somewhere', not Path"),
        ("raises", "raise KeyError('x')", r"locate\(\) raised KeyError"),
    ],
)
def test_a_locator_with_an_invalid_result_is_named(installed, name: str, answer: str, words: str) -> None:
    with pytest.raises(PluginError, match=rf"^plugin {name}: locator store: {words}"):
        find("store://tiny", installed(name, answer))
