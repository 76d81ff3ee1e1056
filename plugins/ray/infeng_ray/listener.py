"""The gateway's lifecycle: listen, watch the replicas, drain, exit."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate
from pathlib import Path

import uvloop
from infeng_serve.api.hosting import (
    BACKLOG,
    FAREWELL_SECONDS,
    SPARE_FILES,
    Bounds,
    Connection,
    Hosts,
    Keys,
    Settings,
    Supervisor,
    config_of,
    is_loopback,
    listening,
    raise_open_files,
    write_atomically,
)
from uvicorn.server import ServerState

from infeng_ray.fleet import Fleet, Members
from infeng_ray.gateway import Gateway
from infeng_ray.loads import Loads
from infeng_ray.router import Router


class Listener:
    """A gateway that listens: ``run`` serves until it is stopped, ``stop`` may be called from any thread."""

    def __init__(
        self,
        settings: Settings,
        keys: Keys,
        members: Members,
        router: Router,
        token: str,
        base: Iterable[str],
    ) -> None:
        """Listen at once, so that a port in use is an error here; raises UsageError."""
        raise_open_files(2 * settings.max_connections + SPARE_FILES)
        self.settings = settings
        self._keys, self._members, self._router, self._token, self._base = keys, members, router, token, tuple(base)
        self._socket = listening(settings.host, settings.port)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(settings.host, settings.host)
        host = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if settings.tls_cert else 'http'}://{host}:{self._socket.getsockname()[1]}"
        self.is_ready = threading.Event()
        """Set once a replica is ready."""
        self._supervisor = Supervisor()
        self.gateway: Gateway
        self.fleet: Fleet
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def run(self, *, has_signals: bool = False, ready: Callable[[], object] = lambda: None) -> None:
        """Serve until ``stop``, or with ``has_signals`` until SIGTERM or SIGINT. ready: called with the first one."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve(has_signals, ready))

    def stop(self) -> None:
        """Drain and exit."""
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed already
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def _serve(self, has_signals: bool, ready: Callable[[], object]) -> None:
        loop = self._loop = asyncio.get_running_loop()
        stopping = self._stopping = asyncio.Event()
        if has_signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stopping.set)
        names, settings = self.settings.allowed_hosts, self.settings
        is_checked = not self._keys.are_asked_for and (is_loopback(self._socket) or bool(names))
        fleet = self.fleet = Fleet(self._members, self._router, self._token)
        gateway = self.gateway = Gateway(
            settings, self._keys, Hosts(names, is_checked=is_checked), fleet, Loads(), self._base,
            has_journal=bool(settings.journal),
        )  # fmt: skip
        fleet.welcome = gateway.welcome
        config = config_of(
            gateway, keep_alive=settings.keep_alive, backlog=BACKLOG, cert=settings.tls_cert, key=settings.tls_key
        )
        bounds = Bounds(settings.max_connections, settings.max_head, settings.head_timeout, settings.write_timeout)
        state = ServerState()
        listener = await loop.create_server(
            lambda: Connection(bounds, config, state, loop), sock=self._socket, ssl=config.ssl, backlog=BACKLOG
        )
        tasks = [loop.create_task(fleet.watch()), loop.create_task(_dates(state))]
        told = loop.create_task(self._tell(ready))
        try:
            await stopping.wait()
            self._supervisor.stopping()
            await self._drain()
        finally:
            listener.close()
            for task in (*tasks, told):
                task.cancel()
            await asyncio.gather(*tasks, told, return_exceptions=True)
            await self._part(state)

    async def _tell(self, ready: Callable[[], object]) -> None:
        while not self.fleet.open:
            await self.fleet.changed(1.0)
        if self.settings.ready_file:
            write_atomically(Path(self.settings.ready_file), f"{self.url}\n")
        ready()
        self._supervisor.ready(f"Serving at {self.url}")
        self.is_ready.set()
        await self._supervisor.watch(lambda: True)

    async def _drain(self) -> None:
        """Refuse new calls and let running ones end within the drain timeout."""
        self.gateway.is_draining = True
        end = time.monotonic() + self.settings.drain_timeout
        while self.gateway.calls and time.monotonic() < end:
            await asyncio.sleep(0.02)

    async def _part(self, state: ServerState) -> None:
        """Close all connections."""
        if self.settings.ready_file:
            Path(self.settings.ready_file).unlink(missing_ok=True)
        for replica in self.fleet.replicas.values():
            replica.pool.close()
        for connection in list(state.connections):
            connection.shutdown()
        end = time.monotonic() + FAREWELL_SECONDS
        while state.connections and time.monotonic() < end:
            await asyncio.sleep(0.01)
        for connection in list(state.connections):
            connection.transport.abort()


async def _dates(state: ServerState) -> None:
    """Update the header Date of all answers, once a second."""
    while True:
        state.default_headers = [(b"date", formatdate(usegmt=True).encode("ascii"))]
        await asyncio.sleep(1.0)
