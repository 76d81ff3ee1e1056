"""One server over the demo model for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import browser_parts
import pytest

pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")
pytest.importorskip("infeng_serve", reason="the serve wheel is not installed")

from page_parts import Page
from serve_parts import Running, running


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    """A server in this process on a free port: ``url``, ``server``, ``engine``, ``ask(path, body)``."""
    with running() as found:
        yield found


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium of the system, without a window, with a profile of its own."""
    with browser_parts.chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def page(chromium: Any) -> Iterator[Page]:
    """A tab of its own, for which the browser keeps nothing."""
    first = chromium.current_window_handle
    chromium.switch_to.new_window("tab")
    found = Page(chromium)
    found.complaints()
    yield found
    chromium.execute_script("if (location.protocol == 'http:') localStorage.clear()")
    chromium.close()
    chromium.switch_to.window(first)
