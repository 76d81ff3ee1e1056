"""The bridge between the event loop and the engine's thread: a thread pool submits requests, and each step's events
are delivered to the event loop together."""

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


class HasRequests(Protocol):
    """The part of an answer in progress that the bridge uses."""

    @property
    def requests(self) -> Sequence[Request]:
        """The requests, one for each choice; they are submitted together."""

    @property
    def streams(self) -> bool:
        """Whether the answer is streamed."""


_A = TypeVar("_A", bound=HasRequests)

Settled = list[tuple[Request, Record]]
"""A call's requests with tenant and time limit set, each with its record."""

Given = list[tuple[int, Event | Exception]]
"""The events of one step by choice."""


class Bridge:
    """Runs an engine on a thread for the event loop that creates this object."""

    def __init__(self, engine: Engine, readers: Readers, makers: Readers) -> None:
        """Start the engine's thread.

        readers: threads that read calls and submit requests. makers: threads that create logit processors, then submit.
        """
        self._engine = engine
        self._readers = readers
        self._makers = makers
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Output] = deque()
        self._choices: dict[int, Choice] = {}
        self._keys = itertools.count()
        self.queues: set[EventQueue] = set()
        """Queues of calls that are being answered."""
        self._coming: set[EventQueue] = set()  # queues of admitted calls whose bodies are being read
        engine.start(self._on_step)

    async def run(self, tenant: str, work: Callable[[], _T]) -> _T:
        """Run slow work on a reader thread when it is the tenant's turn."""
        return await self._readers.run(tenant, work)

    def check_room(self, tenant: str) -> None:
        """Raise OverloadedError if the queue is full for one more call of a tenant, calls being read included."""
        self._engine.check_room(coming=len(self._coming), tenant=tenant)

    async def submit(
        self,
        tenant: str,
        queue: EventQueue,
        read: Callable[[], _A],
        settle: Callable[[Request], tuple[Request, Record]],
    ) -> _A:
        """Read a call and submit its requests on a reader thread in the tenant's turn; events arrive in ``queue``.

        Requests with logit processors are submitted by separate threads, since compiling a grammar can take long.

        settle: returns a request with tenant and time limit set, and its record. The requests are admitted together: if
        there is room for the first, the others follow. Raises OverloadedError before reading, and the errors of reading
        and submitting; after an error nothing of the call is left in the engine.
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
        """End a call and cancel its unfinished requests."""
        self.queues.discard(queue)
        self._coming.discard(queue)
        queue.leave()

    def _read(
        self, queue: EventQueue, read: Callable[[], _A], settle: Callable[[Request], tuple[Request, Record]]
    ) -> tuple[_A, Settled]:
        """Return the answer and, if they have logit processors, its requests; without, the requests are submitted."""
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
        if settled:
            settled[0][1].requests = len(settled)
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
        if queue.is_left:  # the client left while the last request was submitted
            queue.leave()

    # ---------------------------------------------------------------------------------------------- after a step ---

    def _on_step(self) -> None:
        """Hand a step's events to the event loop. Called on the engine's thread."""
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
        except RuntimeError:  # the event loop is closed
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
        """Close the engine; calls that have not ended get ``error``."""
        await self._loop.run_in_executor(None, self._engine.close)
        self._on_step()
        await asyncio.sleep(0)  # lets callbacks that were just scheduled run
        now = time.perf_counter()
        for choice in list(self._choices.values()):
            choice.queue.end(choice, now, error)
        self._choices.clear()
