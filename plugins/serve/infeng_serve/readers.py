"""A thread pool that tenants share fairly: each tenant has its own queue, and no tenant ever has all threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """A piece of work and the future for its result."""

    work: Callable[[], Any]
    future: asyncio.Future[Any]


class Readers:
    """Runs work on threads, round robin over tenants. Methods must be called on the event loop's thread."""

    def __init__(self, threads: int, name: str = "infeng-read") -> None:
        """Start ``threads`` threads; one tenant may use all but one of them, or the only one."""
        self._pool = ThreadPoolExecutor(threads, name)
        self._threads = threads
        self._most_of_one = max(1, threads - 1)
        self._queues: dict[str, deque[_Job]] = {}  # by tenant, in order of turns
        self._running: Counter[str] = Counter()

    async def run(self, tenant: str, work: Callable[[], _T]) -> _T:
        """Run ``work`` on a thread in the tenant's turn and return its result; it is not run if cancelled before."""
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(_Job(work, future))
        self._start()
        return await future

    def close(self) -> None:
        """Start no more work; does not wait for running work."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        """Start work on free threads, for the tenants whose turn it is."""
        while self._running.total() < self._threads:
            tenant = next((one for one in self._queues if self._running[one] < self._most_of_one), None)
            if tenant is None:
                return
            queue = self._queues.pop(tenant)
            job = queue.popleft()
            if queue:
                self._queues[tenant] = queue  # last in the order of turns
            if not job.future.done():
                self._begin(tenant, job)

    def _begin(self, tenant: str, job: _Job) -> None:
        self._running[tenant] += 1
        loop = job.future.get_loop()

        def work() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = job.work()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(self._end, tenant, job, result, error)

        try:
            self._pool.submit(work)
        except RuntimeError:  # closed
            self._end(tenant, job, None, asyncio.CancelledError())

    def _end(self, tenant: str, job: _Job, result: Any, error: BaseException | None) -> None:
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        if not job.future.done():
            if isinstance(error, asyncio.CancelledError):
                job.future.cancel()
            elif error is not None:
                job.future.set_exception(error)
            else:
                job.future.set_result(result)
        self._start()
