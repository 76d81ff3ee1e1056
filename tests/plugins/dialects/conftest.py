"""One server with all dialects over the demo model for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")
pytest.importorskip("infeng_dialects", reason="the dialects wheel is not installed")

from dialect_parts import speaking
from serve_parts import Running


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    """A server in this process on a free port: ``url``, ``server``, ``engine``, ``ask(path, body)``."""
    with speaking(names=["demo"]) as found:
        yield found
