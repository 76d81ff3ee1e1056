"""An engine in this process and a server with the same model and settings; one of the two sleeps at any time."""

from __future__ import annotations

import argparse
import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from infeng_bench import options
from infeng_bench.engine.session import Session, opened
from infeng_bench.http import own_server
from infeng_bench.http.client import Client
from infeng_bench.http.overhead_figures import IN_PROCESS, SERVED
from infeng_bench.http.server_process import ServerProcess
from infeng_bench.load import prompts
from infeng_bench.load.serving import Job
from infeng_bench.peers import lineup
from infeng_bench.peers.child import memory_of
from infeng_core.api import Engine

SIDES = (IN_PROCESS, SERVED)
NONE: Mapping[str, Path] = MappingProxyType({})
CAPACITY_SECONDS = 2.0  # length of the closed loop that measures the capacity
CAPACITY_SEED = 1 << 31
SAMPLE_SECONDS = 0.25


@dataclass(frozen=True)
class PairedEngines:
    """The two sides."""

    session: Session
    server: ServerProcess
    timeout: float

    @property
    def engine(self) -> Engine:
        """The engine of this process."""
        return self.session.engine

    @property
    def context(self) -> int:
        """Most positions of a request."""
        return min(self.engine.limits.context, self.engine.limits.tokens)

    @property
    def vocab(self) -> int:
        """The vocabulary size: a bound of the prompts' ids."""
        return self.engine.model.config.vocab

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Yield a client of the server, which is awake inside the block."""
        with self.server.awake(), Client(SERVED, self.server.address, self.timeout) as client:
            yield client

    def capacity(self, prompt: float, new: float) -> float:
        """Return the requests/s of a closed loop that fills the server's batch. prompt, new: tokens per request."""
        places = min(self.engine.limits.max_segments, self.engine.limits.max_samples)
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
    key: str = "",
) -> Iterator[PairedEngines]:
    """Load the engine twice: in this process and in `infeng serve`.

    settings: ``section__key=value`` for both; the user's take precedence, None means the engine's default.
    adapters: paths by name. more: further arguments of the server. key: its API key.
    """
    with contextlib.ExitStack() as stack:
        server = server_of(arguments, settings, adapters, more, key)
        stack.callback(server.close)
        session = stack.enter_context(opened(arguments, **settings))
        for name, path in adapters.items():
            session.engine.adapters.load(name, path)
        server.ready()
        yield PairedEngines(session, server, arguments.timeout)


def server_of(
    arguments: argparse.Namespace,
    settings: Mapping[str, object],
    adapters: Mapping[str, Path] = NONE,
    more: Sequence[str] = (),
    key: str = "",
) -> ServerProcess:
    """Start only the server; arguments as in ``both``."""
    options.model_name(arguments)
    ours = lineup.own_arguments(arguments, Path(arguments.model or ""), options.threads(arguments))
    given = [word for name, value in settings.items() if value is not None for word in ("--set", _word(name, value))]
    return own_server.started([ours[0], *given, *ours[1:]], adapters, arguments.timeout, more, key)


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
