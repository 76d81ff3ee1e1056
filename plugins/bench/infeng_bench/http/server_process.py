"""Servers as child processes, measured over HTTP."""

from __future__ import annotations

import http.client
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infeng_bench.http import closed_loop
from infeng_bench.http.wire import Address, Wire
from infeng_bench.load.serving import Job, Served
from infeng_bench.peers.child import ChildProcess, memory_of
from infeng_bench.stats.contention import NANO, threads

POLL = 0.05  # seconds between two checks of readiness
HOST = "127.0.0.1"


@dataclass(frozen=True)
class ServedOverHttp(Served):
    """All requests of one round; ``cpu_seconds`` are the server's."""

    client_cpu_seconds: float = 0.0  # of the clients, on the same cores
    loop_cpu_seconds: float | None = None
    """CPU seconds of the server's first thread, INF-ENG's event loop; None if the system does not report it."""


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

    def serve(self, jobs: Sequence[Job], places: int) -> ServedOverHttp:
        """Send ``jobs`` from ``places`` clients; the process runs only meanwhile. Raises PeerError."""
        with self.awake():
            begin, looped = self._cpu(), self._first_thread()
            traces, effort = closed_loop.drive(self.name, self.address, self._wire, jobs, places, self.timeout)
            taken, loop = self._cpu() - begin, self._first_thread()
        loop = None if loop is None or looped is None else loop - looped
        return ServedOverHttp(
            traces,
            effort.seconds,
            taken,
            memory_of(self.pid, "VmHWM"),
            client_cpu_seconds=effort.cpu_seconds,
            loop_cpu_seconds=loop,
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
