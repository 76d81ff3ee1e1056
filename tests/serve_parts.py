"""A server in this process over the demo model, and clients that may behave badly."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import infeng_serve
import msgspec
from infeng_demo import adapter_dir, model_dir
from infeng_serve.app import Route
from infeng_serve.auth import Keys
from infeng_serve.model import Model, load
from infeng_serve.observers import Observer
from infeng_serve.protocol.answer import EVENTS, Context
from infeng_serve.protocol.errors import ApiError
from infeng_serve.routes.generation import route
from infeng_serve.server import Server
from infeng_serve.settings import Settings
from infeng_serve.warm import Warming

from infeng_core.api import Completion, Engine, Event, Request, SamplingParams, load_config
from infeng_core.plug.plugin import read_plugin
from infeng_core.settings.config import default_of

ADAPTERS = (("bard", str(adapter_dir("shakespeare")), 1.0), ("coder", str(adapter_dir("python")), 1.0))


def settings_of(**given: Any) -> Settings:
    """Return settings, those that are not given as plugin.yaml says; any free port."""
    declared = read_plugin(Path(infeng_serve.__file__).with_name("plugin.yaml")).settings
    values = {name: default_of(made) for name, made in declared.items()}
    return Settings.read({**values, "port": 0, "drain_timeout": 5.0, **given})


# ------------------------------------------------------------------------------------------------- a tiny protocol ---


class TinyBody(msgspec.Struct):
    """Body of the route /tiny."""

    prompt: str | list[int]
    max_tokens: int = 8
    n: int = 1
    seed: int = 1
    temperature: float = 0.0
    ignore_eos: bool = False
    stream: bool = False
    model: str | None = None


class TinyAnswer:
    """An answer with a frame for each choice of each piece."""

    def __init__(self, body: TinyBody, context: Context) -> None:
        """Make the requests."""
        params = SamplingParams(
            temperature=body.temperature, max_tokens=body.max_tokens, seed=body.seed, ignore_eos=body.ignore_eos
        )
        adapter = None if body.model is None else context.adapter_of(body.model)
        prompt = body.prompt if isinstance(body.prompt, str) else tuple(body.prompt)
        self.requests = [Request(prompt, params, adapter=adapter) for _ in range(body.n)]
        self.streams = body.stream
        self._id = context.id
        self.numbered = False
        self.kind = EVENTS

    def opening(self) -> bytes:
        """Name the call."""
        return frame({"id": self._id})

    def frames(self, choice: int, events: Sequence[Event]) -> bytes:
        """Give one frame for all events."""
        last = events[-1].completion
        found: dict[str, Any] = {"choice": choice, "text": "".join(event.text for event in events), "of": len(events)}
        return frame(found if last is None else {**found, "finish_reason": last.finish_reason})

    def idle(self) -> bytes:
        """Send an empty comment."""
        return b":\n\n"

    def closing(self) -> bytes:
        """End."""
        return b"data: [DONE]\n\n"

    def failed(self, error: ApiError) -> bytes:
        """End with an error."""
        return b"data: " + error.body() + b"\n\n"

    def body(self, completions: Sequence[Completion]) -> bytes:
        """Give all texts."""
        texts = [completion.text for completion in completions]
        reasons = [completion.finish_reason for completion in completions]
        return msgspec.json.encode({"id": self._id, "texts": texts, "finish_reasons": reasons})


def frame(data: Mapping[str, Any]) -> bytes:
    """Return an event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def read_tiny(body: bytes, context: Context) -> TinyAnswer:
    """Read a body of /tiny."""
    return TinyAnswer(msgspec.json.decode(body, type=TinyBody), context)


# ------------------------------------------------------------------------------------------------------ the server ---


@dataclass
class Running:
    """A server that runs in this process."""

    server: Server
    thread: threading.Thread
    failed: list[BaseException] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it is."""
        return self.server.url

    @property
    def address(self) -> tuple[str, int]:
        """The same for sockets."""
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)

    @property
    def engine(self) -> Engine:
        """What it serves."""
        return self.server.service.model.engine

    def ask(self, path: str, body: Any = None, *, method: str | None = None, **headers: str) -> Reply:
        """Make one call on a connection of its own; ``_`` in names of headers stands for ``-``."""
        return ask(self.address, path, body, method=method, **headers)

    def blocks_in_use(self) -> int:
        """Blocks of the cache that somebody needs."""
        scheduler = self.engine.scheduler
        return int(scheduler.pool.total - scheduler.free_blocks)


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.data)

    @property
    def events(self) -> list[Any]:
        """What the frames of a stream hold."""
        lines = self.data.decode().split("\n\n")
        assert lines[-1] == ""
        assert all(line.startswith("data: ") for line in lines[:-1])
        texts = [line.removeprefix("data: ") for line in lines[:-1]]
        return [text if text == "[DONE]" else json.loads(text) for text in texts]


def ask(address: tuple[str, int], path: str, body: Any = None, *, method: str | None = None, **headers: str) -> Reply:
    """Make one call."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    if data is not None:
        names = {"content-type": "application/json", **names}
    try:
        connection.request(method or ("GET" if data is None else "POST"), path, data, names)
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def demo_model(settings: Settings, keys: Keys | None = None, **overrides: object) -> Model:
    """Load the demo model with two adapters, small enough for tests."""
    given = {"model.path": str(model_dir()), "threads.count": 1, **overrides}
    warming = Warming(settings, keys or Keys())
    return load(load_config(overrides=given), settings, ADAPTERS, warming=warming.run)


@contextlib.contextmanager
def running(
    *,
    keys: Keys | None = None,
    watch: Callable[[Model], Sequence[Observer]] = lambda model: (),
    routes: Mapping[str, Route] | None = None,
    overrides: Mapping[str, object] | None = None,
    model: Callable[[Settings], Model] | None = None,
    waits: bool = True,
    **given: Any,
) -> Iterator[Running]:
    """Run a server on a thread, with the route /tiny beside its own; ``given`` are settings."""
    settings = settings_of(**given)
    make = model or (lambda settings: demo_model(settings, keys, **(overrides or {})))
    server = Server(
        settings, lambda: make(settings), keys=keys, watch=watch, routes={"/tiny": route(read_tiny), **(routes or {})}
    )
    failed: list[BaseException] = []

    def work() -> None:
        try:
            server.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    found = Running(server, thread, failed)
    try:
        if waits:
            assert server.is_ready.wait(60)
            if failed:
                raise failed[0]
        yield found
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive()


# --------------------------------------------------------------------------------------------------------- clients ---


def connected(address: tuple[str, int], *, receives: int | None = None) -> socket.socket:
    """Return a socket; ``receives``: bytes that the system holds for a client that does not read."""
    opened = socket.socket()
    if receives is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
    opened.settimeout(30)
    opened.connect(address)
    return opened


def holds_little(served: Running) -> None:
    """Let the system hold few bytes for clients that connect from now on and do not read."""
    served.server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def posted(path: str, body: Any, *more: str) -> bytes:
    """Return the bytes of a call."""
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
    return "\r\n".join([*head, f"content-length: {len(data)}", *more, "", ""]).encode() + data


def read_until(opened: socket.socket, mark: bytes) -> bytes:
    """Read until ``mark`` has come, or the end."""
    data = b""
    while mark not in data:
        part = opened.recv(65536)
        if not part:
            break
        data += part
    return data


class Slowed:
    """An executable whose steps take longer; counts them."""

    def __init__(self, inner: Any, seconds: float) -> None:
        """Take ``seconds`` more for each step."""
        self._inner = inner
        self._seconds = seconds
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        """Be the executable in every other respect."""
        return getattr(self._inner, name)

    def run(self, batch: Any) -> Any:
        """Run a step, slowly."""
        self.steps += 1
        time.sleep(self._seconds)
        return self._inner.run(batch)


@contextlib.contextmanager
def slowed(engine: Any, seconds: float) -> Iterator[Slowed]:
    """Make an engine's steps take longer."""
    inner = engine.executable
    engine.executable = slow = Slowed(inner, seconds)
    try:
        yield slow
    finally:
        engine.executable = inner


class Stepping(Slowed):
    """An executable of slow steps, of which a test says how many may still run."""

    def __init__(self, inner: Any, seconds: float) -> None:
        """Let steps run."""
        super().__init__(inner, seconds)
        self._left = float("inf")
        self._changed = threading.Condition()

    def run(self, batch: Any) -> Any:
        """Run a step, once it may."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._left > 0, 60)
            self._left -= 1
        return super().run(batch)

    def allow(self, steps: float) -> None:
        """Let so many further steps run."""
        with self._changed:
            self._left = steps
            self._changed.notify_all()


@contextlib.contextmanager
def stepping(engine: Any, seconds: float) -> Iterator[Stepping]:
    """Make an engine's steps take longer, and as many run as the test allows."""
    inner = engine.executable
    made = engine.executable = Stepping(inner, seconds)
    try:
        yield made
    finally:
        made.allow(float("inf"))
        engine.executable = inner


class _Held(Slowed):
    """An executable whose steps from one on wait until they may go on."""

    def __init__(self, inner: Any, first: int, may_go_on: threading.Event) -> None:
        super().__init__(inner, 0.0)
        self._first = first
        self._may_go_on = may_go_on

    def run(self, batch: Any) -> Any:
        if self.steps >= self._first:
            self._may_go_on.wait(30)
        return super().run(batch)


@contextlib.contextmanager
def held(engine: Any, first: int) -> Iterator[threading.Event]:
    """Hold an engine's steps from number ``first`` on until the event is set, for 30 s each at most."""
    may_go_on = threading.Event()
    inner = engine.executable
    engine.executable = _Held(inner, first, may_go_on)
    try:
        yield may_go_on
    finally:
        may_go_on.set()
        engine.executable = inner


def until(is_so: Callable[[], object], seconds: float = 20.0) -> bool:
    """Wait until something is so; return whether it came to be."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True
