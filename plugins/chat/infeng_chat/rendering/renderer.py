"""The engine's side of a template's process: starts it, asks it, ends it when it takes too long."""

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
"""Bytes of JSON that go into one rendering."""
_KEPT = ("HOME", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "PATH", "TZ", "LANG", "LC_ALL", "LC_TIME")
_ADVICE = "check the messages, or give another template with --chat-template FILE"


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What one message may cost."""

    seconds: float = 2.0
    """Of processor time; four times as long may it take on the clock of the wall, and some seconds to start."""
    memory: int = 512 << 20
    """Bytes of the process's address space."""
    output: int = 1 << 22
    """Characters of a prompt."""

    @property
    def patience(self) -> float:
        """Seconds after which the process is ended whatever it does: it may have to wait for a processor."""
        return 4.0 * self.seconds + 4.0


LIMITS = RenderLimits()
MOST_PROCESSES = 8
"""Of one template: more threads than these wait for each other."""

LIMITED = ("time", "memory", "length", "depth", "died")
"""Kinds of errors of what costs too much."""


_spares: list[subprocess.Popen[bytes]] = []
"""Processes that no template has taken yet; each ends with this one, when its input does."""


def prepare() -> None:
    """Start a process that the next template will take: it gets ready while this one does something else."""
    if not _spares:
        with contextlib.suppress(ResourceError):  # whoever needs one is told
            _spares.append(_process())


class RenderError(Exception):
    """The template did not render: ``kind`` as the sandbox names it, or "time", "died"."""

    def __init__(self, kind: str, message: str = "") -> None:
        """Say what happened."""
        super().__init__(message)
        self.kind = kind


class Renderer:
    """One template's processes: started when they are needed, and again after one died. Any thread may ask.

    There are as many as threads have asked at a time, up to ``MOST_PROCESSES``: what takes one thread long is not
    waited for by another.
    """

    def __init__(self, template: str, name: str, limits: RenderLimits = LIMITS) -> None:
        """Take a template's text; ``name`` says in errors where it is from."""
        self.name = name
        self._first = {
            "template": template,
            "limits": {"seconds": limits.seconds, "memory": limits.memory, "output": limits.output},
        }
        self._limits = limits
        self._places = threading.BoundedSemaphore(MOST_PROCESSES)
        self._idle: list[_Child] = []  # the one that was used last is the last

    def compile(self) -> None:
        """Start a process; raises ModelError where the template cannot be compiled."""
        try:
            with self._child():
                pass
        except RenderError as error:
            raise self.broken(error, "compiled") from None

    def broken(self, error: RenderError, what: str) -> ModelError:
        """Return the error of a template that cannot be used at all."""
        why = f"it cannot be {what} ({_why(error, self._limits)})"
        return ModelError(f"chat template {self.name}", why, "correct it, or give another with --chat-template FILE")

    def render(self, variables: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the text for each mapping of variables; raises RequestError for what the template does not render."""
        try:
            return self.attempt(variables)
        except RenderError as error:
            why = printable(_why(error, self._limits))
            if error.kind == "refused":
                raise RequestError("messages", f"the chat template refuses them: {why}", "change them") from None
            raise RequestError("messages", f"the chat template fails on them ({why})", _ADVICE) from None

    def attempt(self, variables: Sequence[Mapping[str, Any]]) -> list[str]:
        """Do the same; raises RenderError."""
        try:
            data = json.dumps({"variables": variables}).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError("messages", f"they are no JSON ({error})", "give texts, numbers and lists") from None
        if len(data) > MOST_INPUT:
            raise RequestError("messages", f"they have {len(data)} bytes", f"send at most {MOST_INPUT}")
        with self._child() as child:
            texts: list[str] = child.ask(data)["texts"]
            return texts

    def close(self) -> None:
        """End the processes that do nothing; the next rendering starts another one."""
        while self._idle:
            self._idle.pop().end()

    @contextlib.contextmanager
    def _child(self) -> Iterator[_Child]:
        """Have a process that knows the template, for one question at a time; raises RenderError where it cannot."""
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
        """Return a process that does nothing and still lives; None where there is none."""
        with contextlib.suppress(IndexError):
            while not (child := self._idle.pop()).is_alive:
                child.end()
            return child
        return None


class _Child:
    """One process."""

    def __init__(self, limits: RenderLimits) -> None:
        """Start it, without a template yet; it ends when nobody knows it any more."""
        self._limits = limits
        self.process = _spare() or _process()
        self.end = weakref.finalize(self, _end, self.process)
        """Ends it; what it does is lost."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self.end.alive and self.process.poll() is None

    def ask(self, data: bytes) -> Any:
        """Send a message and return its answer; where that fails the process is ended. Raises RenderError."""
        try:
            answer = json.loads(self._exchange(data))
        except (OSError, EOFError):
            code = self.process.wait()
            self.end()
            raise RenderError("time" if code == -signal.SIGPROF else "died", f"exit status {code}") from None
        except BaseException:  # the time is over, or Ctrl-C: the next message is not to get this one's answer
            self.end()
            raise
        if "error" in answer:
            if answer["error"] in ("memory", "depth", "syntax"):
                self.end()
            raise RenderError(answer["error"], answer["message"])
        return answer

    def _exchange(self, data: bytes) -> bytes:
        """Write one frame and read one; raises RenderError after ``patience``, EOFError where the process has ended."""
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
    """Return a process that was started ahead and still lives."""
    with contextlib.suppress(IndexError):
        while (child := _spares.pop()).poll() is not None:
            _end(child)
        return child
    return None


def _process() -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise ResourceError("chat templates", "there is no Python to run them with", "run under a Python program")
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    try:
        return subprocess.Popen(
            [sys.executable, "-P", str(SANDBOX)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,  # a terminal's Ctrl-C is not meant for it
        )
    except OSError as error:
        why = f"no process for them can be started ({error.strerror})"
        raise ResourceError("chat templates", why, "free some memory or processes") from None


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a process and forget it."""
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    child.wait()


def _why(error: RenderError, limits: RenderLimits) -> str:
    """Return what happened, in words."""
    said = {
        "time": f"it takes more than {limits.seconds:g} s",
        "memory": f"it takes more than {limits.memory >> 20} MiB",
        "length": f"it writes more than {limits.output} characters",
        "depth": "it is nested too deeply",
        "died": f"its process ended: {error}",
    }
    return said.get(error.kind, str(error))
