"""The parent's side of a template's process: starts it, sends it messages, and kills it when it takes too long."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infeng_core.api import ModelError, RequestError, ResourceError, printable

SANDBOX = Path(__file__).with_name("sandbox.py")
MOST_INPUT = 32 << 20
"""Most bytes of JSON for one rendering."""
_KEPT = ("HOME", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "PATH", "TZ", "LANG", "LC_ALL", "LC_TIME")
_ADVICE = "check the messages, or give another template with --chat-template FILE"


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Limits on one rendering."""

    seconds: float = 2.0
    """CPU seconds; the wall-clock limit is four times as long, plus some seconds for the start."""
    memory: int = 512 << 20
    """Bytes of the process's address space."""
    output: int = 1 << 22
    """Most characters of a prompt."""

    @property
    def patience(self) -> float:
        """Wall-clock seconds after which the process is killed; more than ``seconds``, since it may wait for a core."""
        return 4.0 * self.seconds + 4.0


LIMITS = RenderLimits()
MOST_PROCESSES = 8
"""Most processes of one template; more threads than that wait for each other."""

LIMITED = ("time", "memory", "length", "depth", "died")
"""Kinds of errors for exceeded limits."""


_spares: list[subprocess.Popen[bytes]] = []
"""Started processes without a template yet; each exits when its input closes, with this process."""


def prepare() -> None:
    """Start a process for the next template ahead of time, so that it initializes in parallel."""
    if not _spares:
        with contextlib.suppress(ResourceError):  # reported when a template needs a process
            _spares.append(_process())


class RenderError(Exception):
    """Rendering failed."""

    def __init__(self, kind: str, message: str = "") -> None:
        """kind: the sandbox's kind of error, or "time" or "died"."""
        super().__init__(message)
        self.kind = kind


class Renderer:
    """One template's processes, started on demand and restarted after a crash. Thread-safe.

    Each concurrent rendering has its own process, up to ``MOST_PROCESSES``, so a slow rendering does not delay others.
    """

    def __init__(self, template: str, name: str, limits: RenderLimits = LIMITS) -> None:
        """template: its text. name: its origin, for errors."""
        self.name = name
        self._first = {
            "template": template,
            "limits": {"seconds": limits.seconds, "memory": limits.memory, "output": limits.output},
        }
        self._limits = limits
        self._places = threading.BoundedSemaphore(MOST_PROCESSES)
        self._idle: list[_Child] = []  # in order of last use

    def compile(self) -> None:
        """Start a process; raises ModelError if the template does not compile."""
        try:
            with self._child():
                pass
        except RenderError as error:
            raise self.broken(error, "compiled") from None

    def broken(self, error: RenderError, what: str) -> ModelError:
        """Return the error for an unusable template."""
        why = f"it cannot be {what} ({_why(error, self._limits)})"
        return ModelError(f"chat template {self.name}", why, "correct it, or give another with --chat-template FILE")

    def render(self, variables: Sequence[Mapping[str, Any]]) -> list[str]:
        """Render once for each mapping of variables; raises RequestError if the template fails."""
        try:
            return self.attempt(variables)
        except RenderError as error:
            why = printable(_why(error, self._limits))
            if error.kind == "refused":
                raise RequestError("messages", f"the chat template refuses them: {why}", "change them") from None
            raise RequestError("messages", f"the chat template fails on them ({why})", _ADVICE) from None

    def attempt(self, variables: Sequence[Mapping[str, Any]]) -> list[str]:
        """Render as ``render`` does, but raise RenderError."""
        try:
            data = json.dumps({"variables": variables}).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError("messages", f"they are not JSON ({error})", "give texts, numbers and lists") from None
        if len(data) > MOST_INPUT:
            raise RequestError("messages", f"they have {len(data)} bytes", f"send at most {MOST_INPUT}")
        with self._child() as child:
            texts: list[str] = child.ask(data)["texts"]
            return texts

    def close(self) -> None:
        """End the idle processes; the next rendering starts a new one."""
        while self._idle:
            self._idle.pop().end()

    @contextlib.contextmanager
    def _child(self) -> Iterator[_Child]:
        """Lend a process with the template for one rendering; raises RenderError if none can be had."""
        with self._places:
            child = self._taken()
            if child is None:
                child = _Child(self._limits)
                child.ask(json.dumps(self._first).encode())
            try:
                yield child
            finally:
                if child.is_alive:
                    self._idle.append(child)

    def _taken(self) -> _Child | None:
        """Return an idle process that is still alive, or None."""
        with contextlib.suppress(IndexError):
            while not (child := self._idle.pop()).is_alive:
                child.end()
            return child
        return None


class _Child:
    """One process."""

    def __init__(self, limits: RenderLimits) -> None:
        """Start the process without a template; it is killed when this object is collected."""
        self._limits = limits
        self.process = _spare() or _process()
        self.end = weakref.finalize(self, _end, self.process)
        """Kills the process; its work is lost."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.end.alive and self.process.poll() is None

    def ask(self, data: bytes) -> Any:
        """Send a message and return its answer; a failure kills the process. Raises RenderError."""
        try:
            answer = json.loads(self._exchange(data))
        except (OSError, EOFError):
            code = self.process.wait()
            self.end()
            raise RenderError("time" if code == -signal.SIGPROF else "died", f"exit status {code}") from None
        except BaseException:  # timeout or Ctrl-C: the next message must not get this one's answer
            self.end()
            raise
        if "error" in answer:
            if answer["error"] in ("memory", "depth", "syntax"):
                self.end()
            raise RenderError(answer["error"], answer["message"])
        return answer

    def _exchange(self, data: bytes) -> bytes:
        """Write one frame and read one; raises RenderError after ``patience``, EOFError if the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        to, out = self.process.stdin.fileno(), self.process.stdout.fileno()
        left, got, length = memoryview(len(data).to_bytes(8, "little") + data), bytearray(), 8
        deadline = time.monotonic() + self._limits.patience
        with selectors.DefaultSelector() as ready:
            ready.register(to, selectors.EVENT_WRITE)
            ready.register(out, selectors.EVENT_READ)
            while len(got) < length:
                wait = deadline - time.monotonic()
                if wait <= 0:
                    raise RenderError("time")
                for key, _ in ready.select(wait):
                    if key.fd == to:
                        left = left[os.write(to, left[: 1 << 16]) :]
                        if not left:
                            ready.unregister(to)
                    else:
                        piece = os.read(out, 1 << 16)
                        if not piece:
                            raise EOFError
                        got += piece
                if length == 8 and len(got) >= 8:
                    length += int.from_bytes(got[:8], "little")
        return bytes(got[8:])


def _spare() -> subprocess.Popen[bytes] | None:
    """Return a process that was started ahead of time and is alive, or None."""
    with contextlib.suppress(IndexError):
        while (child := _spares.pop()).poll() is not None:
            _end(child)
        return child
    return None


def _process() -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise ResourceError("chat templates", "there is no Python executable to run them", "run under a Python program")
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    try:
        return subprocess.Popen(
            [sys.executable, "-P", str(SANDBOX)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,  # keeps a terminal's Ctrl-C away from it
        )
    except OSError as error:
        why = f"no process for them can be started ({error.strerror})"
        raise ResourceError("chat templates", why, "free some memory or processes") from None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a process and reap it."""
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    child.wait()


def _why(error: RenderError, limits: RenderLimits) -> str:
    """Return a description of an error."""
    said = {
        "time": f"it takes more than {limits.seconds:g} s",
        "memory": f"it takes more than {limits.memory >> 20} MiB",
        "length": f"it writes more than {limits.output} characters",
        "depth": "it is nested too deeply",
        "died": f"its process ended: {error}",
    }
    return said.get(error.kind, str(error))
