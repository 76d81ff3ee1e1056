"""The engine's side of a trial: one child process (``probe.py``) per library without a stored verdict."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from infeng_core.api import get_logger
from infeng_core.api.inspection import Reason
from infeng_core.api.kernels import FAULTS, Cpu
from infeng_inspect.probe import HOST

CPU_S = 3.0  # per request; a constructor needs milliseconds
WALL_S = 30.0  # a library that sleeps uses no processor time; the limit is wide because the machine may be busy

AUTHOR = "ask the plugin's author for a repair"
OURS = "this is a fault of the engine; the log has its traceback, please report it"

_log = get_logger(__name__)


class Trial:
    """Tries one library in a child process, which starts at the first request and ends with this object."""

    def __init__(self, path: Path, cpu: Cpu, reference: Path | None = None) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._base = {"open": str(path), "features": ",".join(sorted(cpu.features)), "cpu_s": CPU_S}
        self._reference = reference
        self._answers = -1

    def open(self) -> dict[str, Any] | Reason:
        """Load the library and read its description; returns {"name", "version", "abi"} or why that failed."""
        return self._ask({})

    def fits(self, kernel: str, problem: dict[str, Any]) -> dict[str, Any] | Reason:
        """Ask ``kernel`` whether it accepts ``problem`` and how much memory it needs.

        Returns {"fits": bool, "case": the fields of a small problem like it, or None} or why it failed.
        """
        return self._ask({"fits": kernel, "problem": problem})

    def check(self, kernel: str, case: dict[str, Any], judge: tuple[str, str] | None = None) -> dict[str, Any] | Reason:
        """Run ``kernel`` against the reference; returns {"difference": text or None} or why it did not finish.

        judge: library and name of the plain kernel of an op that a library describes.
        """
        return self._ask({"check": kernel, "problem": case, "reference": str(self._reference), "judge": judge})

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            assert child.stdin is not None
            child.stdin.close()
            os.close(self._answers)

    def __del__(self) -> None:
        self.close()

    def _ask(self, more: dict[str, Any]) -> dict[str, Any] | Reason:
        request = json.dumps({**self._base, **more}).encode() + b"\n"
        for fresh in (self._child is None, True):
            if fresh:
                self.close()
                self._start()
            try:
                line = self._exchange(request)
            except BrokenPipeError:
                line = b""
            if line is None:
                self.close()
                return Reason("silent", f"did not answer within {WALL_S:g} s", AUTHOR)
            if line:
                return self._read(line, "failed" if more else "refused")
            if fresh or self._status() != 0:
                break
            # An idle child exits with status 0 by itself; if a fresh child exits, the library ended it.
        return self._cause_of_death()

    def _read(self, line: bytes, failure: str) -> dict[str, Any] | Reason:
        try:
            result: dict[str, Any] = json.loads(line)
            if result.pop("ok"):
                return result
            if result["code"] == HOST:
                return self._not_tried(result["text"], result["traceback"])
            return Reason(FAULTS.get(result["code"], failure), result["text"])
        except (ValueError, KeyError, AttributeError, TypeError):
            self.close()
            return Reason("crashed", "wrote over the answer of the process that tried it", AUTHOR)

    def _not_tried(self, text: str, traceback: str) -> Reason:
        """Report an exception of the engine's own code, which is no verdict about the library."""
        _log.error("the engine could not try a kernel", library=self._base["open"], error=text, exception=traceback)
        return Reason("untried", f"it could not be tried: {text}", OURS)

    def _status(self) -> int:
        """Return the child's exit status; a child that closed its pipe and still runs after CPU_S seconds is killed."""
        assert self._child is not None
        try:
            return self._child.wait(timeout=CPU_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()

    def _start(self) -> None:
        reader, writer = os.pipe()
        package = str(Path(__file__).parents[1])
        path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "infeng_inspect.probe", str(writer)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[writer],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        finally:
            os.close(writer)
        self._answers = reader

    def _exchange(self, request: bytes) -> bytes | None:
        """Return the answer's line, b"" if the child ended, None after the time limit."""
        assert self._child is not None and self._child.stdin is not None
        self._child.stdin.write(request)
        deadline = time.monotonic() + WALL_S
        answer = b""
        while not answer.endswith(b"\n"):
            if not select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            chunk = os.read(self._answers, 1 << 16)
            if not chunk:
                return b""
            answer += chunk
        return answer

    def _cause_of_death(self) -> Reason:
        status = self._status()
        self.close()
        if status == -signal.SIGXCPU:
            return Reason("endless", f"still busy after {CPU_S:g} s of processor time", AUTHOR)
        if status == -signal.SIGILL:
            return Reason("crashed", "used an instruction that this processor does not have (SIGILL)", AUTHOR)
        if status < 0:
            return Reason("crashed", f"killed its process ({signal.Signals(-status).name})", AUTHOR)
        return Reason("crashed", f"ended its process with status {status}", AUTHOR)
