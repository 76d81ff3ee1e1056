"""A sandbox for programs that a model wrote: a child process without network, with limited resources and time.

The tests run in another process (``sandboxed.py``), so that the program cannot forge their outcome.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 10.0
"""Wall time of one program; CPU time has the same limit, rounded up."""

MEMORY = 1 << 30
LIMITS = {"AS": MEMORY, "FSIZE": 1 << 20, "NOFILE": 32, "CORE": 0, "NPROC": 0}
"""Limits of setrlimit; NPROC 0 forbids new processes and threads."""

SANDBOXED = Path(__file__).with_name("sandboxed.py")
_MOST = 4096  # bytes read of the child's answer


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program and its tests."""

    passed: bool
    """Whether the program and its tests ran to their end."""
    reason: str
    """"passed", "failed" (an exception, or an early exit), "timeout" or "killed" by a limit."""
    isolated: bool
    """Whether it had no network, no other processes, and no files except libraries and an empty folder."""


def run(
    program: str, seconds: float | None = None, *, tests: str = "", setup: str = "", entries: Collection[str] = ()
) -> Outcome:
    """Run a Python program, then ``tests`` of its definitions; their output is dropped.

    seconds: default SECONDS. setup: further definitions for the tests. entries: names that refer to the program
    although ``setup`` or Python defines them too. Raises OSError if no child can be started.
    """
    seconds = SECONDS if seconds is None else seconds
    limits = {**LIMITS, "CPU": int(seconds) + 1}
    texts: dict[str, Any] = {"program": program, "tests": tests, "setup": setup, "entries": sorted(entries)}
    job = json.dumps({**texts, "limits": limits}).encode()
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as answers, tempfile.TemporaryDirectory(prefix="infeng-task-") as folder:
        try:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SANDBOXED), str(writing)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"},
                pass_fds=(writing,),
                start_new_session=True,
            )
        finally:
            os.close(writing)
        is_late = False
        try:
            child.communicate(job, timeout=seconds)
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()
            child.wait()
        os.set_blocking(reading, False)
        said = answers.read(_MOST) or b""
    first, _, rest = said.partition(b"\n")
    return Outcome(*_reason(is_late, child.returncode, rest == b"passed"), _is_isolated(first))


def _reason(is_late: bool, status: int, is_done: bool) -> tuple[bool, str]:
    by_signal = -status if status < 0 else status - 128  # the sandbox's processes pass signals on as 128 + number
    if is_late or by_signal == signal.SIGXCPU:
        return False, "timeout"
    if by_signal > 0:
        return False, "killed"
    return (True, "passed") if status == 0 and is_done else (False, "failed")


def _is_isolated(said: bytes) -> bool:
    try:
        gave = json.loads(said)
    except ValueError:
        return False
    return isinstance(gave, dict) and all(gave.get(name) is True for name in ("apart", "read_only"))
