"""The thread that reads and packs adapters beside the running batch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


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
        while True:
            with self._lock:
                if not self._jobs:
                    self._is_working = False
                    return
                job = self._jobs.popleft()
            job()
