"""A server over the demo model with the routes of the wheel infeng-dialects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from infeng_dialects.hooks import DIALECTS, infeng_serve_routes
from infeng_serve.app import Route
from serve_parts import Running, running


def dialects(**settings: Any) -> dict[str, Route]:
    """Return the routes that a server with these settings of the wheel has."""
    given: Mapping[str, Any] = {"use": list(DIALECTS), "rank": "auto", **settings}
    return infeng_serve_routes(given)


@contextlib.contextmanager
def speaking(*, rank: str = "auto", **given: Any) -> Iterator[Running]:
    """Run a server with all dialects; the rest as ``running`` takes it."""
    with running(routes=dialects(rank=rank), **given) as found:
        yield found
