"""Servers as child processes, measured over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from infeng_bench.http.client import CONTEXT, VOCAB, Client
from infeng_bench.http.wire import Address, Wire
from infeng_bench.load.requests import Job, Served
from infeng_bench.processes import ChildProcess, memory_of
from infeng_bench.stats.contention import NANO, threads

POLL = 0.05  # seconds between two checks of readiness
HOST = "127.0.0.1"


class ServerProcess(ChildProcess):
    """A server, measured over HTTP."""

    def __init__(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        wire: Wire,
        log: Path,
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process. command: returns the command line for a port. timeout: seconds until the server is
        ready, and seconds without a byte. Raises PeerError.
        """
        self._wire = wire
        self.address = Address(HOST, _free_port())
        log.unlink(missing_ok=True)
        super().__init__(name, command(self.address.port), log, timeout, has_pipes=False, environ=environ)

    def ready(self) -> None:
        """Wait until it takes requests, then stop it by SIGSTOP. Raises PeerError."""
        end = time.monotonic() + self.timeout
        while not self._answers():
            if self.process.poll() is not None:
                raise self.ended("loading")
            if time.monotonic() > end:
                raise self.error(f"not ready in {self.timeout:g} s")
            time.sleep(POLL)
        self.send_signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def client(self, vocab: int = VOCAB, context: int = CONTEXT) -> Iterator[Client]:
        """Yield a client of the server, which is awake inside the block. vocab, context: of its model."""
        with self.awake(), Client(self.name, self.address, self._wire, self.timeout, vocab, context) as client:
            yield client

    def serve(self, jobs: Sequence[Job], places: int) -> Served:
        """Send ``jobs`` from ``places`` clients; the process runs only meanwhile. Raises PeerError."""
        with self.client() as client:
            begin, looped = self._cpu(), self._first_thread()
            client.connect(min(places, len(jobs)))
            replies, effort = client.run(jobs, places)
            taken, loop = self._cpu() - begin, self._first_thread()
            client.check(replies)
        loop = None if loop is None or looped is None else loop - looped
        memory = memory_of(self.pid, "VmHWM")
        return Served(
            replies, effort.seconds, taken, memory, client_cpu_seconds=effort.cpu_seconds, loop_cpu_seconds=loop
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=5)
        try:
            connection.request("GET", self._wire.ready)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _cpu(self) -> float:
        """Return the CPU seconds of all threads, to the nanosecond, by the clock of clock_getcpuclockid(3)."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def _first_thread(self) -> float | None:
        """Return the CPU seconds of the first thread, to the nanosecond; None if the system does not report them."""
        ran, _ = threads(self.pid).get(self.pid, (None, None))
        return None if ran is None else ran * NANO


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
