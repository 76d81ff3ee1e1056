"""A replica's server: `infeng serve` in a process of its own, on its own cores and with its own journal.

It is a process of its own because Ray asks its actors for their health: one that computes in the same interpreter would
answer late. Places on a machine are numbered; a lock file keeps a place for one replica, and the next one that takes it
finds the journal of the last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infeng_core.api import ResourceError, cache_root, get_logger, require_own
from infeng_ray.state import TOKEN
from infeng_ray.tether import TETHER

MOST_PLACES = 1024
"""Most replicas on one machine."""

START_SECONDS = 1800.0
"""Seconds that a server may take until it serves: a large model is converted at its first start."""

_log = get_logger(__name__)


@dataclass(frozen=True)
class Plan:
    """What every replica of an application runs."""

    arguments: tuple[str, ...]
    """Of `infeng serve`, without address and journal."""
    host: str
    """Address to listen on."""
    cores: int
    """Cores of a replica."""
    token: str
    """Secret of ``/replica``."""
    journal: str = ""
    """Folder of journals, each place's below it; "": none."""
    app: str = "infeng"
    drain_seconds: float = 30.0


class Place:
    """A numbered place on this machine, kept while this object and the server's process live."""

    def __init__(self, folder: Path) -> None:
        """Take the first free place below ``folder``; raises ResourceError."""
        require_own(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(MOST_PLACES):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            handle = os.open(folder / f"{number}.lock", flags, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(handle)
                continue
            self.number, self.handle = number, handle
            return
        raise ResourceError(f"{folder}", f"{MOST_PLACES} replicas run here", "use more machines")

    def cores(self, count: int) -> list[int]:
        """Return the cores of this place, ``count`` of those that this process may use; [] if there are too few."""
        usable = sorted(os.sched_getaffinity(0))
        found = usable[self.number * count : (self.number + 1) * count]
        return found if len(found) == count else []

    def close(self) -> None:
        """Free the place."""
        os.close(self.handle)


class ServerProcess:
    """One server."""

    def __init__(self, plan: Plan) -> None:
        """Start it and return once it serves; raises ResourceError with its last words if it does not."""
        self._plan = plan
        self._place = Place(cache_root() / "ray" / plan.app)
        self._folder = tempfile.TemporaryDirectory(prefix="infeng-ray-")
        self._log = Path(self._folder.name) / "log"
        inner, self._tether = os.pipe()
        try:
            self._process = self._start(inner)
            self.url = self._wait()
        except BaseException:
            self.kill()
            raise
        finally:
            os.close(inner)

    @property
    def cores(self) -> list[int]:
        """The cores that its threads are pinned to; [] for any."""
        return self._place.cores(self._plan.cores)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def check(self) -> None:
        """Raise ResourceError if it has ended."""
        status = self._process.poll()
        if status is not None:
            raise ResourceError(
                "the server of a replica", f"it ended with status {status}: {self._words()}", "see there"
            )

    def drain(self) -> None:
        """Let running answers end and stop it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._plan.drain_seconds + 10)
        self.kill()

    def kill(self) -> None:
        """Stop it at once."""
        process = getattr(self, "_process", None)
        if process is not None:
            process.kill()
            process.wait()
        if self._tether >= 0:
            os.close(self._tether)
            self._place.close()
            self._folder.cleanup()
        self._tether = -1

    def _start(self, inner: int) -> subprocess.Popen[bytes]:
        plan, cores = self._plan, self.cores
        ready = Path(self._folder.name) / "url"
        program = "import sys; from infeng_core.cli import main; sys.exit(main())"
        command = [sys.executable, "-P", "-c", program, "serve", *plan.arguments]
        command += ["--host", plan.host, "--port", "0", "--ready-file", str(ready)]
        if plan.journal:
            command += ["--journal", str(Path(plan.journal) / f"{self._place.number}")]
        environment = os.environ | {TOKEN: plan.token, TETHER: str(inner)}
        environment.pop("NOTIFY_SOCKET", None)  # the supervisor's service is the gateway
        if not cores:
            _log.warning("a replica is not pinned: the machine has too few cores", place=self._place.number)
        with self._log.open("wb") as log:
            return subprocess.Popen(
                _pinned(command, cores),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=(inner, self._place.handle),
                start_new_session=True,  # Ctrl-C reaches the gateway alone, which drains
            )

    def _wait(self) -> str:
        ready = Path(self._folder.name) / "url"
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            self.check()
            with contextlib.suppress(OSError):
                if url := ready.read_text(encoding="utf-8").strip():
                    return url
            time.sleep(0.05)
        raise ResourceError("the server of a replica", f"it does not serve after {START_SECONDS:g} s", "see its log")

    def _words(self) -> str:
        with contextlib.suppress(OSError):
            return self._log.read_text(encoding="utf-8", errors="replace")[-1000:].strip()
        return ""


def _pinned(command: Sequence[str], cores: Sequence[int]) -> list[str]:
    """Return the command that runs ``command`` on ``cores`` alone."""
    if not cores:
        return list(command)
    pin = f"import os, sys; os.sched_setaffinity(0, {list(cores)!r}); os.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-P", "-S", "-c", pin, *command]
