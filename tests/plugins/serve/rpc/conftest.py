"""One server with both protocols for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")
pytest.importorskip("infeng_serve", reason="the serve wheel is not installed")
pytest.importorskip("smg_grpc_proto", reason="infeng-serve[grpc] is not installed")

from rpc_parts import Client, Seen
from serve_parts import Running, running


@pytest.fixture(scope="session")
def seen() -> Seen:
    """What the server tells observers."""
    return Seen()


@pytest.fixture(scope="session")
def served(seen: Seen) -> Iterator[Running]:
    """A server in this process on free ports; two requests run at a time, in small steps."""
    overrides = {"scheduler.max_running": 2, "scheduler.max_batch_tokens": 32, "scheduler.max_waiting": 4}
    with running(grpc_port=0, overrides=overrides, watch=lambda model: [seen]) as found:
        yield found


@pytest.fixture(scope="session")
def client(served: Running) -> Iterator[Client]:
    """A client of it."""
    with Client(served) as found:
        yield found
