"""Between the event loop and the engine's thread: requests go in from a pool, events come out once for each step."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from infeng_core.api import Engine, Event, Output, Request
from infeng_serve.feed import Choice, Feed
from infeng_serve.observers import Record
from infeng_serve.protocol.errors import ApiError
from infeng_serve.readers import Readers

_T = TypeVar("_T")


class Asked(Protocol):
    """What the bridge looks at of an answer in the making."""

    @property
    def requests(self) -> Sequence[Request]:
        """One for each choice; they are submitted together."""

    @property
    def streams(self) -> bool:
        """Whether events are wanted as they come."""


_A = TypeVar("_A", bound=Asked)

Settled = list[tuple[Request, Record]]
"""The requests of a call as the server wants them, each with its record."""

Given = list[tuple[int, Event | Exception]]
"""What one step gave, by the keys of choices."""


class Bridge:
    """Runs an engine by its own thread for the event loop that makes this object."""

    def __init__(self, engine: Engine, readers: Readers, makers: Readers) -> None:
        """Start the engine's thread.

        readers: read and submit requests. makers: submit those with logit processors, which are made first.
        """
        self._engine = engine
        self._readers = readers
        self._makers = makers
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Output] = deque()
        self._choices: dict[int, Choice] = {}
        self._keys = itertools.count()
        self.feeds: set[Feed] = set()
        """Of calls that are being answered."""
        self._coming: set[Feed] = set()  # of calls that were let in and are being read
        engine.start(self._on_step)

    async def run(self, tenant: str, work: Callable[[], _T]) -> _T:
        """Do on a reading thread what takes long, when it is the tenant's turn."""
        return await self._readers.run(tenant, work)

    def check_room(self, tenant: str) -> None:
        """Raise the OverloadedError that one more call of a tenant would meet behind those that are being read."""
        self._engine.check_room(coming=len(self._coming), tenant=tenant)

    async def submit(
        self, tenant: str, feed: Feed, read: Callable[[], _A], settle: Callable[[Request], tuple[Request, Record]]
    ) -> _A:
        """Read a call and submit its requests, both on a thread in the tenant's turn; its events come to ``feed``.

        Where logit processors are made, which may take as long as a grammar takes to compile, other threads do it.

        settle: returns a request as the server wants it, and its record. The requests are let in together: where there
        is room for the first, the others follow. Raises whatever reading and submitting raise, OverloadedError before
        anything is read; then nothing of the call is left in the engine.
        """
        self.check_room(tenant)
        self.feeds.add(feed)
        self._coming.add(feed)
        try:
            answer, settled = await self.run(tenant, lambda: self._read(feed, read, settle))
            if settled:
                await self._makers.run(tenant, lambda: self._start(feed, settled))
        except BaseException:
            self.close(feed)
            raise
        for choice in feed.choices:
            feed.accept(choice)
        return answer

    def close(self, feed: Feed) -> None:
        """End a call: what it has in flight is cancelled."""
        self.feeds.discard(feed)
        self._coming.discard(feed)
        feed.leave()

    def _read(
        self, feed: Feed, read: Callable[[], _A], settle: Callable[[Request], tuple[Request, Record]]
    ) -> tuple[_A, Settled]:
        """Return the answer in the making, and its requests where they have logit processors; others are submitted."""
        feed.check()
        answer = read()
        feed.is_whole, feed.paths = not answer.streams, getattr(answer, "paths", {})
        settled = []
        for request in answer.requests:
            feed.check()
            settled.append(settle(request))
        if any(request.params.processors for request, _ in settled):
            return answer, settled
        self._start(feed, settled)
        return answer, []

    def _start(self, feed: Feed, settled: Settled) -> None:
        choices = [feed.add(record) for _, record in settled]
        for (request, record), choice in zip(settled, choices, strict=True):
            feed.check()
            key = next(self._keys)
            self._choices[key] = choice
            record.submitted = time.perf_counter()
            self._coming.discard(feed)
            try:
                choice.stream = self._engine.submit(request, index=key, ready=self._ready, follows=bool(choice.number))
            except BaseException:
                del self._choices[key]
                raise
        if feed.is_left:  # it left while the last one was submitted
            feed.leave()

    # ---------------------------------------------------------------------------------------------- after a step ---

    def _on_step(self) -> None:
        """Hand over, on the engine's thread, whatever the step gave."""
        ready = self._ready
        if not ready:
            return
        now = time.perf_counter()
        given: Given = []
        while ready:
            output = ready.popleft()
            try:
                event: Event | Exception | None = output.next_event()
            except Exception as error:
                event = error
            if event is not None:
                given.append((output.index, event))
        try:
            self._loop.call_soon_threadsafe(self._deliver, given, now)
        except RuntimeError:  # it is closed: nobody is there any more
            ready.clear()

    def _deliver(self, given: Given, now: float) -> None:
        choices = self._choices
        feeds: dict[Feed, None] = {}
        for key, event in given:
            choice = choices.get(key)
            if choice is not None:
                feeds[choice.feed] = None
                if choice.feed.put(choice, event, now):
                    del choices[key]
        for feed in feeds:
            feed.tell()

    # ---------------------------------------------------------------------------------------------------- ending ---

    def abort(self, error: ApiError) -> None:
        """End all calls with an error."""
        for feed in list(self.feeds):
            feed.abort(error)

    async def shut(self, error: ApiError) -> None:
        """Close the engine, once nobody waits for it; what is left in it ends with ``error``."""
        await self._loop.run_in_executor(None, self._engine.close)
        self._on_step()
        await asyncio.sleep(0)  # for what was just handed over
        now = time.perf_counter()
        for choice in list(self._choices.values()):
            choice.feed.end(choice, now, error)
        self._choices.clear()
