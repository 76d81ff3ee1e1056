"""Engines as child processes that measure on demand: the client side of the protocol in ``worker.py``."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from infeng_bench.engine.work import Work
from infeng_bench.load.serving import Job, Served
from infeng_bench.peers import PeerError
from infeng_bench.peers.environment import clean, last_words
from infeng_bench.stats.contention import NOTHING, Mark

SHOWN = 120  # characters of an invalid answer in an error
GRACE = 5.0  # seconds to end before SIGKILL


class EngineProcess:
    """An engine that stays in memory; SIGSTOP stops all its threads between two requests.

    It has a process group of its own: if this process dies, the system wakes and ends the stopped child.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, timeout: float) -> None:
        """Start ``command``. timeout: seconds of loading and of one answer. Raises PeerError."""
        self.name = name
        self.log = log
        self.timeout = timeout
        self.introduction: dict[str, Any] = {}
        self.waits = NOTHING  # of its threads during the last request
        self._buffer = b""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            try:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=clean({}),
                    process_group=0,
                )
            except OSError as error:
                raise PeerError(name, f"{command[0]}: {error.strerror}", "install it again") from error

    def ready(self) -> dict[str, Any]:
        """Wait until the model is loaded, stop the process and return its introduction."""
        self.introduction = self._answer("loading")
        if self.introduction.get("ready") is not True:
            raise self._error("loading: its first line does not say that it is ready")
        self._signal(signal.SIGSTOP)
        return self.introduction

    def measure(self, work: Work, seed: int) -> dict[str, Any]:
        """Do one work and return its figures; the process runs only meanwhile.

        Raises PeerError, also if the number of tokens is not that of the work; an engine with speculation may count
        more.
        """
        answer = self._ask({"work": str(work), "seed": seed}, str(work))
        rate, tokens = answer.get("tokens_per_s"), answer.get("tokens")
        if not isinstance(rate, (int, float)) or not rate > 0:
            raise self._error(f"{work}: its answer has no tokens_per_s above 0")
        guesses = self.introduction.get("details", {}).get("speculation", "none") != "none"
        if not isinstance(tokens, int) or tokens < work.tokens or (tokens > work.tokens and not guesses):
            raise self._error(f"{work}: it counts {tokens} tokens instead of {work.tokens}")
        return answer

    def adapters(self, wanted: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Replace the engine's adapters by ``wanted``, {"name", "path", "scale"}; return each one's load time in ms.

        Raises PeerError.
        """
        taken = self._ask({"adapters": list(wanted)}, "loading adapters").get("load_ms")
        if not isinstance(taken, dict) or set(taken) != {adapter["name"] for adapter in wanted}:
            raise self._error("loading adapters: its answer lacks times")
        return {name: float(value) for name, value in taken.items()}

    def serve(self, jobs: Sequence[Job], places: int) -> Served:
        """Answer ``jobs``, at most ``places`` at a time; raises PeerError, also if a request lacks tokens."""
        answer = self._ask({"serve": {"requests": [job.to_dict() for job in jobs], "places": places}}, "serving")
        try:
            served = Served.of(jobs, answer)
        except (KeyError, TypeError, ValueError) as error:
            raise self._error(f"serving: its answer is incomplete ({type(error).__name__}: {error})") from error
        for number, trace in enumerate(served.traces):
            if not len(trace.tokens) == len(trace.ids) == trace.job.new:
                raise self._error(f"serving: request {number} got {len(trace.ids)} of {trace.job.new} tokens")
        return replace(served, waits=self.waits)

    def close(self) -> None:
        """End the process, by SIGKILL after GRACE seconds."""
        if self.process.poll() is None:
            with contextlib.suppress(PeerError, OSError):
                self._signal(signal.SIGCONT)
                self._send({"quit": True})
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE)
        self._kill()

    def _ask(self, request: dict[str, Any], doing: str) -> dict[str, Any]:
        mark = Mark.now(self.process.pid)
        self._signal(signal.SIGCONT)
        self._send(request)
        answer = self._answer(doing)
        self.waits = mark.waits()
        self._signal(signal.SIGSTOP)
        return answer

    def _send(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise self._ended(str(request.get("work", "the end"))) from None

    def _answer(self, doing: str) -> dict[str, Any]:
        line = self._line(doing)
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            shown = line[:SHOWN].decode(errors="replace")
            raise self._error(f"{doing}: it answered with {shown!r}, which is no JSON object")
        if "error" in answer:
            raise self._error(f"{doing}: {answer['error']}")
        return answer

    def _line(self, doing: str) -> bytes:
        assert self.process.stdout is not None
        end = time.monotonic() + self.timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise self._error(f"{doing}: no answer in {self.timeout:g} s", "or give a longer --timeout")
                chunk = os.read(self.process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise self._ended(doing)
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _ended(self, doing: str) -> PeerError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        status = self.process.returncode
        how = f"status {status}"
        if status is not None and status < 0:
            with contextlib.suppress(ValueError):
                how = signal.Signals(-status).name
        return self._error(f"{doing}: its process ended with {how}: {last_words(self.log)}")

    def _error(self, why: str, remedy: str = "") -> PeerError:
        """Kill the process and return the error to raise."""
        self._kill()
        return PeerError(self.name, why, f"see {self.log}{' ' * bool(remedy)}{remedy}")

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            raise self._ended("waiting") from None

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
