"""Routes of plugins, over real HTTP: docs/examples/route, and those that cannot be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from infeng_serve.auth import Keys
from infeng_serve.hookspecs import routes_of
from infeng_serve.routes import table
from serve_parts import Running, running

from infeng_core.api import Plugins, UsageError, load_config

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "route" / "infeng_length" / "plugin.yaml"
CODE = """
from infeng_core.api import hookimpl
from infeng_serve.api import Route
async def answer(service, call):
    raise ZeroDivisionError("1/0")
@hookimpl(optionalhook=True)
def infeng_serve_routes():
    return {value}
"""


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No module of a plugin, and no place that it lies in, stays."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("infeng_length", "infeng_odd", "infeng_other"):
        sys.modules.pop(name, None)


def plugins_of(*paths: Path, **settings: Any) -> Plugins:
    overrides = {name.replace("__", "."): value for name, value in settings.items()}
    overrides |= {"plugins.paths": [str(path) for path in paths], "plugins.disable": ["dialects"]}
    return Plugins.discover(load_config(overrides=overrides))


def made(folder: Path, value: str, name: str = "odd") -> Path:
    """Write a plugin with the routes that an expression makes."""
    package = folder / f"infeng_{name}"
    package.mkdir()
    (package / "__init__.py").write_text(CODE.replace("{value}", value))
    file = package / "plugin.yaml"
    file.write_text(
        f"infeng_plugin: 1\nname: {name}\nversion: 1\npython: infeng_{name}\n"
        "provides: {hooks: [infeng_serve_routes]}\n"
    )
    return file


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    plugins = plugins_of(EXAMPLE, length__most=20)
    with running(routes=routes_of(plugins, table()), keys=Keys(["a-key"])) as found:
        yield found


def test_the_example_answers_at_its_path_to_calls_with_a_key(served: Running):
    key = {"authorization": "Bearer a-key"}
    tokens = len(served.engine.tokenize("Once upon a time"))
    reply = served.ask("/length", {"text": "Once upon a time"}, **key)
    assert (reply.status, reply.json) == (200, {"tokens": tokens})
    assert served.ask("/length", {"text": "Once upon a time"}).status == 401
    assert served.ask("/length", method="GET", **key).status == 405
    for body in ({"txt": "x"}, [], {"text": 5}, {"text": "x" * 21}):
        reply = served.ask("/length", body, **key)
        assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error"), body


def test_an_exception_of_a_handler_is_answered_with_500(tmp_path: Path):
    plugins = plugins_of(made(tmp_path, "{'/odd': Route({'GET': answer})}"))
    with running(routes=routes_of(plugins, table())) as found:
        assert found.ask("/odd").status == 500
        assert found.ask("/health").status == 200


@pytest.mark.parametrize("path", ["/health", "/v1/chat/completions"])
def test_a_plugin_cannot_replace_a_path_of_the_server(tmp_path: Path, path: str):
    plugins = plugins_of(made(tmp_path, "{'" + path + "': Route({'GET': answer})}"))
    with pytest.raises(UsageError, match=f"plugin odd: its route {path} is one of the server already"):
        routes_of(plugins, table())


def test_two_plugins_with_one_path_are_an_error(tmp_path: Path):
    value = "{'/odd': Route({'GET': answer})}"
    plugins = plugins_of(made(tmp_path, value), made(tmp_path, value, "other"))
    with pytest.raises(UsageError, match="plugin other: its route /odd is one of plugin odd already"):
        routes_of(plugins, table())


def test_a_path_must_begin_with_a_slash(tmp_path: Path):
    plugins = plugins_of(made(tmp_path, "{'odd': Route({'GET': answer})}"))
    with pytest.raises(UsageError, match="its route 'odd' begins with no /"):
        routes_of(plugins, table())


@pytest.mark.parametrize("value", ["[]", "{'/odd': answer}", "{'/odd': Route({'GET': 5})}", "1 / 0"])
def test_a_plugin_with_invalid_routes_gives_a_warning_that_names_it(
    tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
):
    assert routes_of(plugins_of(made(tmp_path, value)), table()) == {}
    said = capsys.readouterr().err
    assert "plugin odd is not used" in said and "infeng_serve_routes() " in said


def test_a_plugin_that_declares_no_routes_is_not_imported(tmp_path: Path):
    file = made(tmp_path, "{'/odd': Route({'GET': answer})}")
    file.write_text(file.read_text().replace("provides: {hooks: [infeng_serve_routes]}\n", ""))
    assert routes_of(plugins_of(file), table()) == {}
    assert "infeng_odd" not in sys.modules
