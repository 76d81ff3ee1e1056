"""Concurrent calls for asyncio, bounded in number, with results in the order of the calls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable

from infeng_client.aio_stream import AsyncStream
from infeng_client.errors import ApiError
from infeng_client.many import AHEAD, check
from infeng_client.results import Completion


def in_order(jobs: Iterable[AsyncStream], concurrency: int) -> AsyncGenerator[Completion | ApiError, None]:
    """Yield the result of each job. Running jobs are cancelled when the iterator is closed."""
    return _results(jobs, check(concurrency))


async def _results(jobs: Iterable[AsyncStream], concurrency: int) -> AsyncGenerator[Completion | ApiError, None]:
    places = asyncio.Semaphore(concurrency)
    window: deque[asyncio.Task[Completion | ApiError]] = deque()
    try:
        for job in jobs:
            window.append(asyncio.create_task(_result(job, places)))
            while window and (window[0].done() or len(window) >= AHEAD * concurrency):
                yield await window[0]
                window.popleft()
        while window:
            yield await window[0]
            window.popleft()
    finally:
        for task in window:
            task.cancel()
        await asyncio.gather(*window, return_exceptions=True)


async def _result(job: AsyncStream, places: asyncio.Semaphore) -> Completion | ApiError:
    async with places:
        try:
            return await job.finish()
        except ApiError as error:
            return error
