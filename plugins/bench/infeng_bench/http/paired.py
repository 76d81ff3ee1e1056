"""An engine in this process and a server with the same model and settings; one of the two sleeps at any time."""

from __future__ import annotations

import argparse
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from infeng_bench import options
from infeng_bench.engine.command_line import own_arguments
from infeng_bench.engine.place import IN_PROCESS, EnginePlace
from infeng_bench.engine.session import Sides, opened
from infeng_bench.http import completions
from infeng_bench.http.server_process import ServerProcess
from infeng_bench.load import prompts
from infeng_bench.load.place import Place
from infeng_bench.load.requests import Job
from infeng_bench.processes import INFENG, memory_of
from infeng_core.api import cache_root

SERVED = "served"  # the name in results of our server
MODEL = "bench"  # the server's name of the base model
MARK = b'"finish_reason":null'  # in every frame with text and in no other
SIDES = (IN_PROCESS, SERVED)
NONE: Mapping[str, Path] = MappingProxyType({})

Keys = Callable[[Job], str]

CAPACITY_SECONDS = 2.0  # length of the closed loop that measures the capacity
CAPACITY_SEED = 1 << 31
SAMPLE_SECONDS = 0.25


@dataclass(frozen=True)
class PairedEngines(Sides):
    """The two sides."""

    server: ServerProcess

    @property
    def context(self) -> int:
        """Most positions of a request."""
        return EnginePlace(self.session.engine).context

    @property
    def vocab(self) -> int:
        """The vocabulary size: a bound of the prompts' ids."""
        return self.session.engine.model.config.vocab

    def pid(self, side: str) -> int | str:
        """Return the process of a side."""
        return "self" if side == IN_PROCESS else self.server.pid

    def capacity(self, prompt: float, new: float) -> float:
        """Return the requests/s of a closed loop that fills the server's batch. prompt, new: tokens per request."""
        limits = self.session.engine.limits
        places = min(limits.max_segments, limits.max_samples)
        done, seconds, rounds = 0, 0.0, 0
        while seconds < CAPACITY_SECONDS:
            first = 4 * places * rounds
            numbers = range(first, first + (4 if rounds else 1) * places)
            jobs = [
                Job(0.0, prompts.random_ids(round(prompt), CAPACITY_SEED, k, self.vocab), max(2, round(new)))
                for k in numbers
            ]
            served = self.server.serve(jobs, places)
            if rounds:  # the first round warms up
                done, seconds = done + len(jobs), seconds + served.seconds
            rounds += 1
        return done / seconds


@contextlib.contextmanager
def both(
    arguments: argparse.Namespace,
    settings: Mapping[str, object],
    adapters: Mapping[str, Path] = NONE,
    more: Sequence[str] = (),
    key: Keys = lambda job: "",
    *,
    streams: bool = True,
) -> Iterator[PairedEngines]:
    """Load the engine twice: in this process and in `infeng serve`.

    settings: ``section__key=value`` for both; the user's take precedence, None means the engine's default.
    adapters: paths by name. more: further arguments of the server. key: returns the API key of a request, or
    "". streams: whether answers stream.
    """
    with contextlib.ExitStack() as stack:
        server = server_of(arguments, settings, adapters, more, key, streams=streams)
        stack.callback(server.close)
        session = stack.enter_context(opened(arguments, **settings))
        for name, path in adapters.items():
            session.engine.adapters.load(name, path)
        server.ready()
        inside = EnginePlace(session.engine, raises=False)
        places: Mapping[str, Callable[[], AbstractContextManager[Place]]] = {
            IN_PROCESS: lambda: inside,
            SERVED: lambda: server.client(inside.vocab, inside.context),
        }
        yield PairedEngines(session, places, server)


def server_of(
    arguments: argparse.Namespace,
    settings: Mapping[str, object],
    adapters: Mapping[str, Path] = NONE,
    more: Sequence[str] = (),
    key: Keys = lambda job: "",
    *,
    streams: bool = True,
) -> ServerProcess:
    """Start only the server; arguments as in ``both``."""
    options.model_name(arguments)
    model, *ours = own_arguments(arguments, Path(arguments.model or ""), options.threads(arguments))
    waits = {"scheduler__max_wait_ms": 0}  # a closed loop sends all at once, and no request may be refused
    given = [_word(name, value) for name, value in {**waits, **settings}.items() if value is not None]
    words = [word for text in given for word in ("--set", text)]
    loras = [word for name, path in adapters.items() for word in ("--lora", f"{name}={path}")]
    command = [*INFENG, "serve", model, *words, *ours, *more, "--served-model-name", MODEL, *loras]
    wire = completions.wire(MODEL, key, streams=streams, mark=MARK)
    log = cache_root() / "bench" / "peers" / "infeng-serve.log"
    return ServerProcess(SERVED, lambda port: [*command, "--port", str(port)], wire, log, arguments.timeout)


@contextlib.contextmanager
def served(arguments: argparse.Namespace, settings: Mapping[str, object], vocab: int) -> Iterator[Place]:
    """Yield a client of a server of its own. vocab: of the model."""
    server = server_of(arguments, settings)
    try:
        server.ready()
        with server.client(vocab) as client:
            yield client
    finally:
        server.close()


@contextlib.contextmanager
def resident(pid: int | str) -> Iterator[list[int]]:
    """Yield a list to which a thread appends the resident bytes of a process four times a second."""
    found: list[int] = []
    is_over = threading.Event()

    def watch() -> None:
        while nbytes := memory_of(pid, "VmRSS"):
            found.append(nbytes)
            if is_over.wait(SAMPLE_SECONDS):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def _word(name: str, value: object) -> str:
    return f"{name.replace('__', '.')}={str(value).lower() if isinstance(value, bool) else value}"
