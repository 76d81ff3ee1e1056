"""Many calls at once for callers that block, no more than a number of them, answers in the order of the questions."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from infeng_client.errors import ApiError
from infeng_client.results import Completion

AHEAD = 4
"""Calls that may have been begun, for each one that runs, while the answer that is next is not there."""


class Job(Protocol):
    """A call that has not begun."""

    def finish(self) -> Completion:
        """Do it."""

    def cancel(self) -> None:
        """From another thread: end it."""


def check(concurrency: int) -> int:
    """Return the number; raises ValueError for less than one."""
    if concurrency < 1:
        raise ValueError(f"concurrency {concurrency}: at least one call has to run")
    return concurrency


def in_order(jobs: Iterable[Job], concurrency: int) -> Generator[Completion | ApiError, None, None]:
    """Yield what each job ends with. The jobs that run are cancelled when the iterator is closed."""
    return _results(jobs, check(concurrency))


def _results(jobs: Iterable[Job], concurrency: int) -> Generator[Completion | ApiError, None, None]:
    window: deque[tuple[Job, Future[Completion | ApiError]]] = deque()
    with ThreadPoolExecutor(concurrency, "infeng-client") as executor:
        try:
            for job in jobs:
                window.append((job, executor.submit(_result, job)))
                while window and (window[0][1].done() or len(window) >= AHEAD * concurrency):
                    yield window[0][1].result()
                    window.popleft()
            while window:
                yield window[0][1].result()
                window.popleft()
        finally:
            for job, future in window:
                if not future.cancel():
                    job.cancel()


def _result(job: Job) -> Completion | ApiError:
    try:
        return job.finish()
    except ApiError as error:
        return error
