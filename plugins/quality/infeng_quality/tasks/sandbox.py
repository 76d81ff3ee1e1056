"""Programs that a model wrote run in a child that has no network, few resources and little time.

Their tests run in another one (``jail.py``): whether they pass is not for the program to say.
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
"""Wall time of one program; its processor time is bounded by the same, rounded up."""

MEMORY = 1 << 30
LIMITS = {"AS": MEMORY, "FSIZE": 1 << 20, "NOFILE": 32, "CORE": 0, "NPROC": 0}
"""Of setrlimit; NPROC 0: no process and no thread can be started."""

JAIL = Path(__file__).with_name("jail.py")
_MOST = 4096  # bytes of what the child answers; nobody reads more


@dataclass(frozen=True)
class Outcome:
    """What became of a program."""

    passed: bool
    """It ran to its end, and so did its tests."""
    reason: str
    """"passed", "failed" (an exception, or an early exit), "timeout" or "killed" by a limit."""
    isolated: bool
    """Whether it saw no network, no other process and no files but libraries and an empty folder of its own."""


def run(
    program: str, seconds: float | None = None, *, tests: str = "", setup: str = "", entries: Collection[str] = ()
) -> Outcome:
    """Run a Python program, then ``tests`` of what it defines; what they print is dropped.

    seconds: SECONDS where nothing is given; setup: what tests use beside the program; entries: names that are the
    program's although ``setup`` or Python defines them as well. Raises OSError where no child can be started.
    """
    seconds = SECONDS if seconds is None else seconds
    limits = {**LIMITS, "CPU": int(seconds) + 1}
    texts: dict[str, Any] = {"program": program, "tests": tests, "setup": setup, "entries": sorted(entries)}
    job = json.dumps({**texts, "limits": limits}).encode()
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as answers, tempfile.TemporaryDirectory(prefix="infeng-task-") as folder:
        try:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(JAIL), str(writing)],
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
    by_signal = -status if status < 0 else status - 128  # which the jail's own processes pass on
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
