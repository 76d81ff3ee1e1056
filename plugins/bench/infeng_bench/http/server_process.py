"""Servers as child processes: started, measured over HTTP, stopped by a signal between measurements, ended."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infeng_bench.http import closed_loop
from infeng_bench.http.closed_loop import Address, Wire
from infeng_bench.load.serving import Job, Served
from infeng_bench.peers import PeerError
from infeng_bench.peers.environment import clean, last_words

GRACE = 10.0  # seconds between SIGTERM and SIGKILL
POLL = 0.05  # seconds between two checks of readiness
HOST = "127.0.0.1"


@dataclass(frozen=True)
class ServedOverHttp(Served):
    """All requests of one round; ``cpu_seconds`` are the server's."""

    client_cpu_seconds: float = 0.0  # of the clients, on the same cores
    loop_cpu_seconds: float | None = None
    """CPU seconds of the server's first thread, INF-ENG's event loop; None if the system does not report it."""


class ServerProcess:
    """A server that stays in memory; SIGSTOP stops all its threads between two measurements."""

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
        self.name = name
        self._wire, self._log, self._timeout = wire, log, timeout
        self.address = Address(HOST, _free_port())
        log.parent.mkdir(parents=True, exist_ok=True)
        line = list(command(self.address.port))
        with log.open("wb") as said:
            try:
                self._process = subprocess.Popen(
                    line, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=clean(environ or {}), process_group=0
                )
            except OSError as error:
                raise PeerError(name, f"{line[0]}: {error.strerror}", "install it again") from error

    def ready(self) -> None:
        """Wait until it takes requests, then stop it by SIGSTOP. Raises PeerError."""
        end = time.monotonic() + self._timeout
        while not self._answers():
            if self._process.poll() is not None:
                why = f"it ended with status {self._process.returncode}: {last_words(self._log)}"
                raise PeerError(self.name, why, f"see {self._log}")
            if time.monotonic() > end:
                raise PeerError(self.name, f"not ready in {self._timeout:g} s", f"see {self._log}")
            time.sleep(POLL)
        self._signal(signal.SIGSTOP)

    def serve(self, jobs: Sequence[Job], places: int) -> ServedOverHttp:
        """Send ``jobs`` from ``places`` clients; the process runs only meanwhile. Raises PeerError."""
        with self.awake():
            begin, looped = self._cpu(), self._first_thread()
            traces, seconds, client = closed_loop.drive(
                self.name, self.address, self._wire, jobs, places, self._timeout
            )
            taken, loop = self._cpu() - begin, self._first_thread()
        loop = None if loop is None or looped is None else loop - looped
        return ServedOverHttp(traces, seconds, taken, self._peak(), client_cpu_seconds=client, loop_cpu_seconds=loop)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Let the process run inside the block. Raises PeerError."""
        self._signal(signal.SIGCONT)
        yield
        self._signal(signal.SIGSTOP)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def close(self) -> None:
        """End the process, by SIGKILL after GRACE seconds."""
        if self._process.poll() is None:
            with contextlib.suppress(PeerError):
                self._signal(signal.SIGCONT)
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE)
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

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
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def _first_thread(self) -> float | None:
        """Return the CPU seconds of the first thread, to the nanosecond; None if the system does not report them."""
        try:
            told = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/schedstat").read_text(encoding="ascii")
            return int(told.split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            return None

    def _peak(self) -> int:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii").splitlines():
                if line.startswith("VmHWM:"):
                    return 1024 * int(line.split()[1])
        return 0

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            raise PeerError(self.name, f"it has ended: {last_words(self._log)}", f"see {self._log}") from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
