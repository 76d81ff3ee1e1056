"""The threads that read and pack adapters beside the running batch."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

NICENESS = 7
"""Niceness of a thread with a long job. On a core that a worker of the batch wants, the thread gets about a sixth of
the time, so a step takes little longer (a step ends with its slowest worker); on an idle core it runs at full speed.
A brief job is a millisecond of work for which requests wait, and its thread is as urgent as the batch."""

GRACE = 0.25
"""Seconds after which a job counts as slow: it usually waits for storage, so others may run beside it."""

MOST = 4
"""Jobs that run at a time."""

MOST_STUCK = 8
"""Threads whose jobs were given up and have not returned; at this number, no further thread is started."""


class Job(Protocol):
    """A job of the loader; jobs of the same entry run one after another."""

    @property
    def entry(self) -> object:
        """The entry that the job loads."""

    @property
    def is_brief(self) -> bool:
        """Whether the job takes about a millisecond of a processor."""


J = TypeVar("J", bound=Job)


class Loader(Generic[J]):
    """Runs jobs on threads of its own, one at a time as long as they are quick.

    Packing is bound by the processor, which the running batch needs, so more threads would only slow the batch. A
    slow job does not block other jobs. A job that lasts longer than ``timeout`` is given up, since its thread may
    never return. Threads end when there is no job.
    """

    def __init__(
        self, run: Callable[[J], None], give_up: Callable[[J, str], bool], timeout: float, workers: int = 0
    ) -> None:
        """Start without jobs or threads.

        run: must not raise. give_up: called with the reason; returns False for a job that is nearly done. workers:
        how far those of the batch stand behind the threads of the process.
        """
        self._niceness = workers + NICENESS
        self._run = run
        self._give_up = give_up
        self._timeout = timeout
        self._jobs: deque[J] = deque()
        self._running: dict[J, float] = {}  # with its start time
        self._stuck = 0
        self._lock = threading.RLock()  # acquired explicitly: Ctrl-C inside a condition's `with` would leave it locked
        self._changed = threading.Condition(self._lock)
        self._is_watched = False

    def add(self, job: J) -> None:
        """Queue a job."""
        with self._lock:
            self._jobs.append(job)
            if not self._running:
                self._begin_next()
            self._changed.notify_all()
            if not self._is_watched:
                threading.Thread(target=self._watch, name="infeng-adapters-watch", daemon=True).start()
                self._is_watched = True

    def _begin_next(self) -> None:
        job = self._next() if self._stuck < MOST_STUCK else None
        if job is not None:  # a daemon thread: a download that hangs does not keep the process from ending
            threading.Thread(target=self._work, args=(job,), name="infeng-adapters", daemon=True).start()

    def _next(self) -> J | None:
        busy = {job.entry for job in self._running}
        job = next((job for job in self._jobs if job.entry not in busy), None)
        if job is not None:
            self._jobs.remove(job)
            self._running[job] = time.monotonic()
        return job

    def _work(self, job: J | None) -> None:
        is_nice = False
        while job is not None:
            if not (job.is_brief or is_nice):
                be_nice(self._niceness)
                is_nice = True
            self._run(job)
            with self._lock:
                if self._running.pop(job, None) is None:  # given up meanwhile: another thread has replaced this one
                    self._stuck -= 1
                    return
                self._changed.notify_all()
                if is_nice:  # which cannot be taken back, so the watching thread starts a thread for the next job
                    return
                job = self._next()

    def _watch(self) -> None:
        """Start jobs beside slow ones and give up late ones, as long as there are any."""
        while True:
            with self._lock:
                if not self._running and not self._jobs:
                    self._is_watched = False
                    return
                now = time.monotonic()
                late = [job for job, since in self._running.items() if now - since >= self._timeout]
                why = f"it was not read within {self._timeout:g} s"
                if not self._running and self._stuck >= MOST_STUCK:
                    late, why = list(self._jobs), f"{self._stuck} other loads do not come to an end"
                    self._jobs.clear()
                elif self._jobs and len(self._running) < MOST and now - max(self._running.values(), default=0) >= GRACE:
                    self._begin_next()
                if not late:
                    self._changed.wait(self._rest(time.monotonic()))
            for job in late:
                self._drop(job, why)

    def _rest(self, now: float) -> float:
        """Return the seconds until a job becomes slow or late."""
        waits = (GRACE, self._timeout) if self._jobs else (self._timeout,)
        ends = [since + wait for since in self._running.values() for wait in waits]
        return max(0.001, min((end for end in ends if end > now), default=now + GRACE) - now)

    def _drop(self, job: J, why: str) -> None:
        is_given_up = self._give_up(job, why)  # without the lock: the callback takes other locks
        with self._lock:
            if job in self._running and is_given_up:
                del self._running[job]
                self._stuck += 1
            elif job in self._running:
                self._running[job] = time.monotonic()


def be_nice(niceness: int) -> None:
    """Give the calling thread at least ``niceness`` over the process's own."""
    if sys.platform == "linux":  # each Linux thread has its own niceness
        with suppress(OSError):
            own, thread = os.getpriority(os.PRIO_PROCESS, os.getpid()), threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, max(own + niceness, os.getpriority(os.PRIO_PROCESS, thread)))
