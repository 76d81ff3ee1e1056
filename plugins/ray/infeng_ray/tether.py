"""A child process that ends with its parent, however that ends: it reads a pipe that only the parent holds open."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Mapping

TETHER = "INFENG_RAY_TETHER"
"""Environment variable with the number of the pipe's end."""


def hold(environment: Mapping[str, str]) -> None:
    """Watch the pipe that the environment names, on a thread; nothing without one."""
    text = environment.get(TETHER, "")
    if text.isdecimal():
        threading.Thread(target=_watch, args=(int(text),), name="infeng-tether", daemon=True).start()


def _watch(end: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(end, 1):
            pass
        os.kill(os.getpid(), signal.SIGKILL)  # nobody would stop this server any more
