"""The client that blocks is what ``make_sync.py`` makes of the one for asyncio, and has the same methods."""

from __future__ import annotations

import inspect
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("infeng_client", reason="the client wheel is not installed")

import infeng_client
from infeng_client import AsyncClient, AsyncStream, Client, Stream

MAKER = runpy.run_path(str(Path(__file__).parents[3] / "plugins" / "client" / "make_sync.py"))


def test_the_generated_files_are_up_to_date():
    assert MAKER["stale"]() == []


def test_no_asyncio_is_left_in_the_generated_files():
    for source in MAKER["MADE"]:
        assert "await " not in MAKER["made_of"](source) and "Async" not in MAKER["made_of"](source)


def test_a_word_without_a_translation_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "aio.py").write_text('"""One."""\nasync_timeout = 1\n')
    monkeypatch.setitem(MAKER["made_of"].__globals__, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match="'async_timeout = 1' is not translated"):
        MAKER["made_of"]("aio.py")


def test_both_clients_accept_the_same_calls():
    for waits, blocks in ((AsyncClient, Client), (AsyncStream, Stream)):
        for name, method in inspect.getmembers(waits, inspect.isfunction):
            if name.startswith("_"):
                continue
            assert list(inspect.signature(method).parameters) == list(
                inspect.signature(getattr(blocks, name)).parameters
            )
    assert {*dir(Stream)} - {*dir(AsyncStream)} >= {"cancel"}


def test_httpx_is_imported_at_first_use():
    code = "import sys, infeng_client.hooks as hooks; hooks.infeng_run_options(); print('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True).stdout == "False\n"
    assert {name for name in infeng_client.__all__ if getattr(infeng_client, name) is None} == set()
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        infeng_client.Nothing  # noqa: B018
