"""A process of a measurement that takes turns with others: it sleeps between its turns, and its group ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from infeng_core.api import InfengError

GRACE = 10.0  # seconds to end before SIGKILL
TAIL = 400  # most characters of a log in an error

INFENG = (sys.executable, "-P", "-c", "import sys; from infeng_core.cli import main; sys.exit(main())")
"""The command line `infeng` of this interpreter."""


class PeerError(InfengError):
    """A server or another engine cannot be installed, started or measured. The text names it and its log."""


class ChildProcess:
    """A process that stays in memory; SIGSTOP stops all its threads between two turns.

    It has a process group of its own: if this process dies, the system wakes and ends the stopped child.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        timeout: float,
        *,
        has_pipes: bool,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``command``.

        timeout: seconds, for a subclass. has_pipes: whether it reads a pipe and writes another; otherwise its output
        goes to ``log``, as its errors do. environ: further environment variables. Raises PeerError.
        """
        self.name, self.log, self.timeout = name, log, timeout
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as said:
            try:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE if has_pipes else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if has_pipes else said,
                    stderr=said,
                    env=clean(environ or {}),
                    process_group=0,
                )
            except OSError as error:
                raise PeerError(name, f"{command[0]}: {error.strerror}", "install it again") from error

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Let the process run inside the block. Raises PeerError."""
        self.send_signal(signal.SIGCONT)
        yield
        self.send_signal(signal.SIGSTOP)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its group; raises PeerError if it has ended."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            raise self.ended("waiting") from None

    def ask_to_end(self) -> None:
        """Ask the running process to end."""
        self.process.terminate()

    def close(self) -> None:
        """End the process, by SIGKILL after GRACE seconds."""
        if self.process.poll() is None:
            with contextlib.suppress(PeerError, OSError):
                self.send_signal(signal.SIGCONT)
                self.ask_to_end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE)
        self._kill()

    def ended(self, doing: str) -> PeerError:
        """Return the error of a process that has ended, with its last words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        status = self.process.returncode
        how = f"status {status}"
        if status is not None and status < 0:
            with contextlib.suppress(ValueError):
                how = signal.Signals(-status).name
        return self.error(f"{doing}: its process ended with {how}: {last_words(self.log)}")

    def error(self, why: str, remedy: str = "") -> PeerError:
        """Kill the process and return the error to raise."""
        self._kill()
        return PeerError(self.name, why, f"see {self.log}{' ' * bool(remedy)}{remedy}")

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def memory_of(pid: int | str, field: str) -> int:
    """Return the bytes of a field of /proc/PID/status, such as VmRSS; 0 if the system does not report it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{field}:"):
                return 1024 * int(line.split()[1])
    return 0


def clean(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment variables and ``more``.

    Variables that change where another Python finds its modules are left out.
    """
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    return {**kept, **more}


def last_words(log: Path) -> str:
    """Return the last line of a log that mentions an error, or its last line."""
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return "it said nothing"
    told = [line for line in lines if line]
    errors = [line for line in told if "error" in line.lower()]
    return (errors or told or ["it said nothing"])[-1][-TAIL:]
