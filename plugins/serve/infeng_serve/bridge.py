"""Between the event loop and the engine's thread: requests go in from a pool, events come out once for each step."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from infeng_core.api import Engine, Event, Output, Request
from infeng_serve.event_queue import Choice, EventQueue
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
        self.queues: set[EventQueue] = set()
        """Of calls that are being answered."""
        self._coming: set[EventQueue] = set()  # of calls that were let in and are being read
        engine.start(self._on_step)

    async def run(self, tenant: str, work: Callable[[], _T]) -> _T:
        """Do on a reading thread what takes long, when it is the tenant's turn."""
        return await self._readers.run(tenant, work)

    def check_room(self, tenant: str) -> None:
        """Raise the OverloadedError that one more call of a tenant would meet behind those that are being read."""
        self._engine.check_room(coming=len(self._coming), tenant=tenant)

    async def submit(
        self,
        tenant: str,
        queue: EventQueue,
        read: Callable[[], _A],
        settle: Callable[[Request], tuple[Request, Record]],
    ) -> _A:
        """Read a call and submit its requests, both on a thread in the tenant's turn; its events come to ``queue``.

        Where logit processors are made, which may take as long as a grammar takes to compile, other threads do it.

        settle: returns a request as the server wants it, and its record. The requests are let in together: where there
        is room for the first, the others follow. Raises whatever reading and submitting raise, OverloadedError before
        anything is read; then nothing of the call is left in the engine.
        """
        self.check_room(tenant)
        self.queues.add(queue)
        self._coming.add(queue)
        try:
            answer, settled = await self.run(tenant, lambda: self._read(queue, read, settle))
            if settled:
                await self._makers.run(tenant, lambda: self._start(queue, settled))
        except BaseException:
            self.close(queue)
            raise
        for choice in queue.choices:
            queue.accept(choice)
        return answer

    def close(self, queue: EventQueue) -> None:
        """End a call: what it has in flight is cancelled."""
        self.queues.discard(queue)
        self._coming.discard(queue)
        queue.leave()

    def _read(
        self, queue: EventQueue, read: Callable[[], _A], settle: Callable[[Request], tuple[Request, Record]]
    ) -> tuple[_A, Settled]:
        """Return the answer in the making, and its requests where they have logit processors; others are submitted."""
        queue.check()
        answer = read()
        queue.is_whole, queue.paths = not answer.streams, getattr(answer, "paths", {})
        settled = []
        for request in answer.requests:
            queue.check()
            settled.append(settle(request))
        if any(request.params.processors for request, _ in settled):
            return answer, settled
        self._start(queue, settled)
        return answer, []

    def _start(self, queue: EventQueue, settled: Settled) -> None:
        choices = [queue.add(record) for _, record in settled]
        for (request, record), choice in zip(settled, choices, strict=True):
            queue.check()
            key = next(self._keys)
            self._choices[key] = choice
            record.submitted = time.perf_counter()
            self._coming.discard(queue)
            try:
                choice.stream = self._engine.submit(request, index=key, ready=self._ready, follows=bool(choice.number))
            except BaseException:
                del self._choices[key]
                raise
        if queue.is_left:  # it left while the last one was submitted
            queue.leave()

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
        queues: dict[EventQueue, None] = {}
        for key, event in given:
            choice = choices.get(key)
            if choice is not None:
                queues[choice.queue] = None
                if choice.queue.put(choice, event, now):
                    del choices[key]
        for queue in queues:
            queue.tell()

    # ---------------------------------------------------------------------------------------------------- ending ---

    def abort(self, error: ApiError) -> None:
        """End all calls with an error."""
        for queue in list(self.queues):
            queue.abort(error)

    async def shut(self, error: ApiError) -> None:
        """Close the engine, once nobody waits for it; what is left in it ends with ``error``."""
        await self._loop.run_in_executor(None, self._engine.close)
        self._on_step()
        await asyncio.sleep(0)  # for what was just handed over
        now = time.perf_counter()
        for choice in list(self._choices.values()):
            choice.queue.end(choice, now, error)
        self._choices.clear()
