"""Engines as child processes that measure on demand: the client side of the protocol in ``worker.py``."""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from infeng_bench.engine.work import Work
from infeng_bench.load.requests import Job, Served
from infeng_bench.processes import ChildProcess
from infeng_bench.stats.contention import NOTHING, Mark

from infeng_peers import messages

SHOWN = 120  # characters of an invalid answer in an error


class EngineProcess(ChildProcess):
    """A process that answers lines of JSON."""

    when_late = "or give a longer --timeout"  # the remedy for an answer that takes too long

    def __init__(self, name: str, command: Sequence[str], log: Path, timeout: float) -> None:
        """Start ``command``. timeout: seconds of loading and of one answer. Raises PeerError."""
        super().__init__(name, command, log, timeout, has_pipes=True)
        self.introduction: dict[str, Any] = {}
        self.waits = NOTHING  # of its threads during the last request
        self.adapter_bytes: dict[str, int] = {}  # of A and B in memory by adapter, as far as the engine says
        self._buffer = b""

    def ready(self) -> dict[str, Any]:
        """Wait until the model is loaded, stop the process and return its introduction."""
        self.introduction = self._answer("loading")
        if self.introduction.get("ready") is not True:
            raise self.error("loading: its first line does not say that it is ready")
        self.send_signal(signal.SIGSTOP)
        return self.introduction

    def measure(self, work: Work, seed: int, uses: Sequence[str] = ()) -> dict[str, Any]:
        """Do one work and return its figures; the process runs only meanwhile.

        uses: loaded adapters that the rows use in turn. Raises PeerError, also if the number of tokens is not that of
        the work; an engine with speculation may count more.
        """
        more = {"uses": list(uses)} if uses else {}
        answer = self.ask({"work": str(work), "seed": seed, **more}, str(work))
        rate, tokens = answer.get("tokens_per_s"), answer.get("tokens")
        if not isinstance(rate, (int, float)) or not rate > 0:
            raise self.error(f"{work}: its answer has no tokens_per_s above 0")
        guesses = self.introduction.get("details", {}).get("speculation", "none") != "none"
        if not isinstance(tokens, int) or tokens < work.tokens or (tokens > work.tokens and not guesses):
            raise self.error(f"{work}: it counts {tokens} tokens instead of {work.tokens}")
        return answer

    def adapters(self, wanted: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Replace the engine's adapters by ``wanted``, {"name", "path", "scale"}; return each one's load time in ms.

        Raises PeerError.
        """
        answer = self.ask({"adapters": list(wanted)}, "loading adapters")
        taken, sizes = answer.get("load_ms"), answer.get("bytes", {})
        if not isinstance(taken, dict) or set(taken) != {adapter["name"] for adapter in wanted}:
            raise self.error("loading adapters: its answer lacks times")
        self.adapter_bytes = {name: int(value) for name, value in sizes.items()}
        return {name: float(value) for name, value in taken.items()}

    def serve(self, jobs: Sequence[Job], places: int) -> Served:
        """Answer ``jobs``, at most ``places`` at a time; raises PeerError, also if a request lacks tokens."""
        answer = self.ask({"serve": {"requests": [messages.of_job(job) for job in jobs], "places": places}}, "serving")
        try:
            served = messages.served_of(jobs, answer)
        except (KeyError, TypeError, ValueError) as error:
            raise self.error(f"serving: its answer is incomplete ({type(error).__name__}: {error})") from error
        for number, reply in enumerate(served.replies):
            if not len(reply.times) == len(reply.ids) == reply.job.new:
                raise self.error(f"serving: request {number} got {len(reply.ids)} of {reply.job.new} tokens")
        return replace(served, waits=self.waits)

    def ask(self, request: Mapping[str, Any], doing: str) -> dict[str, Any]:
        """Send a line and return the answer; the process runs only meanwhile. doing: for errors. Raises PeerError."""
        mark = Mark.now(self.process.pid)
        with self.awake():
            self._send(request, doing)
            answer = self._answer(doing)
            self.waits = mark.waits()
        return answer

    def ask_to_end(self) -> None:
        """End its input, after which it ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def _send(self, request: Mapping[str, Any], doing: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise self.ended(doing) from None

    def _answer(self, doing: str) -> dict[str, Any]:
        line = self._line(doing)
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            shown = line[:SHOWN].decode(errors="replace")
            raise self.error(f"{doing}: it answered with {shown!r}, which is no JSON object")
        if "error" in answer:
            raise self.error(f"{doing}: {answer['error']}")
        return answer

    def _line(self, doing: str) -> bytes:
        assert self.process.stdout is not None
        end = time.monotonic() + self.timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise self.error(f"{doing}: no answer in {self.timeout:g} s", self.when_late)
                chunk = os.read(self.process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise self.ended(doing)
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
