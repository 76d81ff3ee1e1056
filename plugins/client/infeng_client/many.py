"""Concurrent calls on threads, bounded in number, with results in the order of the calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from infeng_client.errors import ApiError
from infeng_client.results import Completion

AHEAD = 4
"""Calls that may be started ahead of the next result, as a multiple of the running ones."""


class Job(Protocol):
    """A call that has not started."""

    def finish(self) -> Completion:
        """Do it."""

    def cancel(self) -> None:
        """Cancel the call; called from another thread."""


def check(concurrency: int) -> int:
    """Return ``concurrency``; raises ValueError if it is less than 1."""
    if concurrency < 1:
        raise ValueError(f"concurrency {concurrency}: at least one call has to run")
    return concurrency


def in_order(jobs: Iterable[Job], concurrency: int) -> Generator[Completion | ApiError, None, None]:
    """Yield the result of each job. Running jobs are cancelled when the iterator is closed."""
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
