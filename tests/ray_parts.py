"""A gateway in this process before servers of this process or of others, without Ray."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from infeng_ray.listener import Listener
from infeng_ray.router import ROUTES
from infeng_ray.state import TOKEN, routes
from infeng_serve.auth import Keys
from serve_parts import Reply, ask, settings_of, until

SECRET = "secret-of-tests"
REPLICA_ROUTES = routes({TOKEN: SECRET})


@dataclass
class Gated:
    """A gateway that runs on a thread."""

    listener: Listener
    members: dict[str, str]
    """The replicas by name, which tests change."""

    @property
    def url(self) -> str:
        """Where it is."""
        return self.listener.url

    @property
    def address(self) -> tuple[str, int]:
        """The same for sockets."""
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)

    def ask(self, path: str, body: Any = None, *, method: str | None = None, **headers: str) -> Reply:
        """Make one call."""
        return ask(self.address, path, body, method=method, **headers)

    def replicas(self, **headers: str) -> dict[str, Any]:
        """Return what the gateway knows of each replica that is ready."""
        return {one["name"]: one for one in self.ask("/replicas", **headers).json["replicas"] if one["ready"]}

    def settled(self, count: int, **headers: str) -> None:
        """Wait until so many replicas are ready."""
        assert until(lambda: len(self.replicas(**headers)) == count, 60)


@contextlib.contextmanager
def gateway(
    members: Mapping[str, str], *, keys: Keys | None = None, route: str = "rendezvous", **given: Any
) -> Iterator[Gated]:
    """Run a gateway before these servers, by name; ``given`` are settings."""
    known = dict(members)

    async def listed() -> Mapping[str, str]:
        return dict(known)

    settings = settings_of(drain_timeout=5.0, **given) if "drain_timeout" not in given else settings_of(**given)
    listener = Listener(settings, keys or Keys(), listed, ROUTES[route](), SECRET, ("model", "demo"))
    failed: list[BaseException] = []

    def work() -> None:
        try:
            listener.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        assert not known or listener.is_ready.wait(60), failed
        yield Gated(listener, known)
    finally:
        listener.stop()
        thread.join(30)
        assert not thread.is_alive()
        assert not failed, failed
