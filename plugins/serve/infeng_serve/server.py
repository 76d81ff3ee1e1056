"""The server's lifecycle: listen, load, serve, drain, exit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from infeng_inspect.api import shorten_slice
from uvicorn import Config
from uvicorn.server import ServerState

from infeng_core.api import UsageError, get_logger
from infeng_core.api.servers import StartupTimes
from infeng_serve.app import App, Route
from infeng_serve.auth import Keys
from infeng_serve.connection import Bounds, Connection, config_of
from infeng_serve.host_header import Hosts, is_loopback
from infeng_serve.model import Model
from infeng_serve.notify import Supervisor
from infeng_serve.observers import Observer
from infeng_serve.protocol.errors import shutting_down
from infeng_serve.routes import page, table
from infeng_serve.service import Service
from infeng_serve.settings import Settings
from infeng_serve.sockets import BACKLOG, listening, pem, raise_open_files

if TYPE_CHECKING:
    from infeng_serve.rpc.server import RpcServer

FAREWELL_SECONDS = 2.0
"""Seconds for which aborted answers and connections may write what is buffered."""

RPC_FAREWELL_SECONDS = 0.5
"""The same for gRPC, where health watchers never end their calls."""

SPARE_FILES = 256
"""Open files besides those of connections."""

SWITCH_SECONDS = 0.0002
"""GIL switch interval in seconds, so that the event loop also runs soon between two steps of the engine; the engine
sets its own interval during a step."""

_log = get_logger(__name__)


class Server:
    """One server: ``run`` serves until it is stopped, ``stop`` may be called from any thread."""

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Model],
        *,
        keys: Keys | None = None,
        watch: Callable[[Model], Sequence[Observer]] = lambda model: (),
        routes: Mapping[str, Route] | None = None,
        startup: StartupTimes | None = None,
    ) -> None:
        """Listen at once, so that a port in use is an error here; raises UsageError.

        load: called on a separate thread. watch: returns the observers; an observer with a ``close`` is closed at the
        end. routes: additional routes. startup: durations of the start so far, to which ``load`` may add.
        """
        raise_open_files(settings.max_connections * (1 if settings.grpc_port is None else 2) + SPARE_FILES)
        self.settings = settings
        self.service = Service(settings, keys or Keys(), startup)
        self._load = load
        self._watch = watch
        self._rpc = _rpc(self.service, settings)
        self._socket = listening(settings.host, settings.port)
        try:
            app = App(self.service, {**table(), **page.routes(settings), **(routes or {})}, self._hosts())
            self._config = _config(app, settings)
        except BaseException:
            self._socket.close()
            raise
        if settings.ready_file:
            self._forget(Path(settings.ready_file))
        scheme, host = "https" if settings.tls_cert else "http", settings.host
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # where it can be reached
        port = self._socket.getsockname()[1]
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        self.is_ready = threading.Event()
        """Set once requests are served, or loading has failed."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._state = ServerState()
        self._supervisor = Supervisor()
        self.service.startup.record("listen")

    def run(self, *, has_signals: bool = False) -> None:
        """Serve until ``stop``, or with ``has_signals`` (on the main thread) until SIGTERM or SIGINT.

        Raises the error of loading the model.
        """
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._serve(has_signals))
            finally:
                self.is_ready.set()

    def stop(self) -> None:
        """Drain and exit, as after SIGTERM."""
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed already
                self._loop.call_soon_threadsafe(self._stopping.set)

    @property
    def is_local(self) -> bool:
        """Whether the server is reachable from this machine alone."""
        return is_loopback(self._socket)

    @property
    def grpc_address(self) -> str:
        """Host and port of the gRPC service, once it runs; "" without one."""
        return "" if self._rpc is None else self._rpc.address

    def _hosts(self) -> Hosts:
        """Return the check of host names, which is active on a server without keys."""
        names = self.settings.allowed_hosts
        return Hosts(names, is_checked=not self.service.keys.are_asked_for and (self.is_local or bool(names)))

    def _forget(self, ready_file: Path) -> None:
        """Remove the ready file that a killed process left: its URL is stale."""
        try:
            ready_file.unlink(missing_ok=True)
        except OSError as error:
            self._socket.close()
            why = error.strerror or str(error)
            raise UsageError(f"--ready-file {ready_file}", why, "give a file that can be written") from error

    # ------------------------------------------------------------------------------------------------- lifecycle ---

    async def _serve(self, has_signals: bool) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if has_signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._hear, number)
        bounds = _bounds(self.settings)
        listener = await self._loop.create_server(
            lambda: Connection(bounds, self._config, self._state, asyncio.get_running_loop()),
            sock=self._socket,
            ssl=self._config.ssl,
            backlog=BACKLOG,
        )
        self._tick(self._loop)
        try:
            if self._rpc is not None:
                await self._rpc.start()
        except BaseException:
            await self._go(listener)
            raise
        stopped = asyncio.create_task(self._stopping.wait())
        loaded = asyncio.create_task(self._loaded())
        try:
            await asyncio.wait((stopped, loaded), return_when=asyncio.FIRST_COMPLETED)
            if loaded.done():
                await self._begin(await loaded, is_own_process=has_signals)
                alive = asyncio.create_task(self._supervisor.watch(self._is_well))
                await stopped
                self._supervisor.stopping()
                await self._drain()
                alive.cancel()
            elif has_signals:
                _leave(0)  # the loading thread cannot be stopped
        finally:
            stopped.cancel()
            await self._go(listener)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Update the header Date of all responses, once a second."""
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode("ascii"))]
        loop.call_later(1.0, self._tick, loop)

    async def _loaded(self) -> Model:
        """Load the model and read the journal on a daemon thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Model] = loop.create_future()

        def tell(model: Model | None, error: BaseException | None) -> None:
            if future.done():
                return
            if model is not None:
                future.set_result(model)
            else:
                future.set_exception(error or AssertionError("nothing was loaded"))

        def work() -> None:
            found: tuple[Model | None, BaseException | None]
            try:
                found = (self._loaded_now(), None)
            except BaseException as error:
                found = (None, error)
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(tell, *found)

        threading.Thread(target=work, name="infeng-load", daemon=True).start()
        return await future

    def _loaded_now(self) -> Model:
        """Load the model and read the journal; raises the error of either."""
        startup = self.service.startup
        entries = self.service.journal.read()
        startup.record("journal")
        if entries:
            _log.info("journal read", entries=entries)
        model = self._load()
        startup.record("model")  # time that ``load`` has not attributed to a phase
        return model

    async def _begin(self, model: Model, *, is_own_process: bool) -> None:
        """Begin to serve requests. is_own_process: nothing else runs in this process."""
        self.service.begin(model, self._watch(model))
        if self._rpc is not None:
            await self._rpc.serve()
        if is_own_process:
            gc.collect()
            gc.freeze()  # loaded objects stay: exempt them from garbage collection
            sys.setswitchinterval(min(SWITCH_SECONDS, sys.getswitchinterval()))
            shorten_slice()  # workers occupy all cores: this thread must not wait for the end of their time slices
        startup = self.service.startup
        startup.record("begin")
        if self.settings.ready_file:
            write_atomically(Path(self.settings.ready_file), f"{self.url}\n")
        _log.info(
            "serving",
            url=self.url,
            grpc=self.grpc_address,
            model=model.name,
            total_ms=round(1000 * startup.total),
            **in_ms(startup),
        )
        self._supervisor.ready(f"Serving {model.name} at {self.url}")
        self.is_ready.set()

    def _is_well(self) -> bool:
        """Whether the steps of the engine end, so that a supervisor need not start this server again."""
        return self.service.model.engine.stall is None

    async def _drain(self) -> None:
        """Refuse new calls and let running ones end within the drain timeout; abort the rest."""
        self.service.is_draining = True
        if self._rpc is not None:
            await self._rpc.drain()
        _log.info("draining", calls=self.service.limits.calls)
        if not await self._idle(self.settings.drain_timeout):
            _log.warning("unfinished calls are aborted", calls=self.service.limits.calls)
            self.service.bridge.abort(shutting_down())
            await self._idle(FAREWELL_SECONDS)

    async def _idle(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until no call is being answered; return whether none is."""
        end = time.monotonic() + seconds
        while self.service.limits.calls and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return not self.service.limits.calls

    async def _go(self, listener: asyncio.AbstractServer) -> None:
        """Close everything."""
        self.service.is_draining = True
        if self.settings.ready_file:
            Path(self.settings.ready_file).unlink(missing_ok=True)
        listener.close()
        if self._rpc is not None:
            await self._rpc.stop(RPC_FAREWELL_SECONDS)
        for connection in list(self._state.connections):
            connection.shutdown()
        end = time.monotonic() + FAREWELL_SECONDS
        while self._state.connections and time.monotonic() < end:
            await asyncio.sleep(0.01)
        for connection in list(self._state.connections):
            connection.transport.abort()
        parts: list[object] = [*self.service.observers]
        if self.service.is_loaded:
            await self.service.bridge.shut(shutting_down())
            parts.append(self.service.model.template)
        self.service.readers.close()
        self.service.makers.close()
        self.service.waiters.close()
        self.service.journal.close()
        for part in parts:
            getattr(part, "close", lambda: None)()

    def _hear(self, number: int) -> None:
        """Handle a signal: the first drains, the second ends the process."""
        assert self._stopping is not None
        if self._stopping.is_set():
            _leave(128 + number)
        self._stopping.set()


def in_ms(startup: StartupTimes) -> dict[str, float]:
    """Return the duration of each phase of a start in milliseconds."""
    return {f"{phase}_ms": round(1000 * seconds, 1) for phase, seconds in startup.seconds.items()}


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically; raises UsageError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.unlink(missing_ok=True)
        with beside.open("x", encoding="utf-8") as file:  # "x" follows no existing link
            file.write(text)
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"{path}", error.strerror or str(error), "give a file that can be written") from error


def _rpc(service: Service, settings: Settings) -> RpcServer | None:
    """Return the gRPC server if the settings ask for one; raises UsageError without the extra or for a port in use."""
    if settings.grpc_port is None:
        return None
    try:
        from infeng_serve.rpc.server import RpcServer
    except ImportError as error:
        raise UsageError("--grpc-port", f"{error.name} is not installed", "pip install 'infeng-serve[grpc]'") from None
    if settings.grpc_port:
        listening(settings.host, settings.grpc_port, "--grpc-port").close()  # gives a better error than gRPC
    return RpcServer(service, settings.host, settings.grpc_port)


def _bounds(settings: Settings) -> Bounds:
    return Bounds(settings.max_connections, settings.max_head, settings.head_timeout, settings.write_timeout)


def _config(app: App, settings: Settings) -> Config:
    if settings.tls_key and not settings.tls_cert:
        raise UsageError("--tls-key", "there is no certificate to it", "give --tls-cert as well")
    for path in (settings.tls_cert, settings.tls_key):
        if path:
            pem(path)  # the ssl module would block on a pipe
    try:
        return config_of(
            app, keep_alive=settings.keep_alive, backlog=BACKLOG, cert=settings.tls_cert, key=settings.tls_key
        )
    except OSError as error:  # ssl.SSLError is an OSError
        why = error.strerror or str(error)
        raise UsageError(f"{settings.tls_cert}", why, "give a certificate and its private key as PEM files") from error


def _leave(status: int) -> None:
    """End the process at once, without cleanup."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
