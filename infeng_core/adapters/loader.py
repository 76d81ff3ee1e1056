"""The thread that reads and packs adapters beside the running batch."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

NICENESS = 7
"""Of the loader's thread. Where a worker of the batch wants the same core, the loader gets some sixth of it, so that a
step takes little longer (a step ends with its slowest worker); on a core that nobody wants it runs at full speed."""


class Loader:
    """Does one job after another on a thread of its own, which ends when there is none.

    One thread is enough: packing is bound by the processor, which the running batch needs. A thread that waits would
    keep the engine alive for nothing.
    """

    def __init__(self) -> None:
        """No job, no thread."""
        self._jobs: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._is_working = False

    def add(self, job: Callable[[], None]) -> None:
        """Queue a job, which must not raise."""
        with self._lock:
            self._jobs.append(job)
            if self._is_working:
                return
            self._is_working = True
        # A daemon: a download that hangs does not keep the process from ending.
        threading.Thread(target=self._work, name="infeng-adapters", daemon=True).start()

    def _work(self) -> None:
        if sys.platform == "linux":  # where a thread has a niceness of its own
            with suppress(OSError):
                thread = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)
        while True:
            with self._lock:
                if not self._jobs:
                    self._is_working = False
                    return
                job = self._jobs.popleft()
            job()
