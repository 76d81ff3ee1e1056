"""The events of one call's choices, merged until the call takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from infeng_core.api import Completion, Event, Stream
from infeng_serve.failures import GoneError, failure
from infeng_serve.observers import Observer, Record
from infeng_serve.protocol.errors import ApiError

News = dict[int, list[Event]]
"""Events by choice number."""


@dataclass(slots=True, eq=False)
class Choice:
    """One request of a call."""

    queue: EventQueue
    number: int
    record: Record
    stream: Stream | None = None
    is_accepted: bool = False
    is_ended: bool = False


class EventQueue:
    """The events of one call. All methods must run on the event loop's thread, except ``add`` and ``check``.

    Events that a slow call has not taken are merged, so the engine never waits for it and the queue never holds more
    than its answer.
    """

    def __init__(self, id: str, observers: Sequence[Observer]) -> None:
        """Start empty. id: the call's id, for the log."""
        self.choices: list[Choice] = []
        self.completions: dict[int, Completion] = {}
        self.is_left = False
        """Whether the answer is no longer wanted."""
        self.is_gone = False
        """Whether the client has disconnected."""
        self.is_whole = False
        """Whether the call waits for the end of all choices, not for single events."""
        self.paths: Mapping[str, str] = {}
        """Paths of the call's parameters by the names that errors of the engine use."""
        self.at_once: Callable[[News], bool] | None = None
        """Callback that takes events without waking the call; returns False, having taken none, if it must wake."""
        self._id = id
        self._observers = observers
        self._news: News = {}
        self._error: ApiError | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    def add(self, record: Record) -> Choice:
        """Add a choice and return it. Called on the thread that submits it."""
        choice = Choice(self, len(self.choices), record)
        self.choices.append(choice)
        return choice

    # ------------------------------------------------------------------------------------------- from the engine ---

    def accept(self, choice: Choice) -> None:
        """Notify observers, once, that the engine has accepted a choice."""
        if not choice.is_accepted:
            choice.is_accepted = True
            if choice.stream is not None:
                choice.record.prompt_tokens = choice.stream.prompt_tokens
            for observer in self._observers:
                observer.accepted(choice.record)

    def put(self, choice: Choice, event: Event | Exception, now: float) -> bool:
        """Add an event of a step at ``now``; return whether it was the choice's last. ``tell`` must be called after."""
        if not choice.is_accepted:
            self.accept(choice)
        if isinstance(event, Exception):
            error = failure(event, self._id, self.paths)
            self.end(choice, now, error)
            self.abort(error)
            return True
        record = choice.record
        new = len(event.token_ids)
        if new:
            if not record.first_token and choice.stream is not None:
                record.cached_tokens = choice.stream.cached_tokens
            for observer in self._observers:
                observer.tokens(record, new, now)
            if not record.first_token:
                record.first_token = now
            record.last_token = now
            record.completion_tokens += new
        completion = event.completion
        if completion is not None:
            self.completions[choice.number] = completion
            self._complete(choice, completion, now)
        if not (self.is_left or self.is_whole):
            self._news.setdefault(choice.number, []).append(event)
        return completion is not None

    def tell(self) -> None:
        """Notify the call of the events of one step."""
        if self.is_left or self.is_whole:
            if len(self.completions) == len(self.choices):
                self.wake()
        elif self._news and self._waiter is not None and not self._taken_at_once():
            self.wake()

    def _taken_at_once(self) -> bool:
        if self.at_once is None or self._error is not None:
            return False
        try:
            is_taken = self.at_once(self._news)
        except Exception as error:
            is_taken = True
            self.abort(failure(error, self._id, self.paths))
        if is_taken:
            self._news = {}
        return is_taken

    def _complete(self, choice: Choice, completion: Completion, now: float) -> None:
        record = choice.record
        record.prompt_tokens = completion.usage.prompt_tokens
        record.cached_tokens = completion.usage.cached_tokens
        record.completion_tokens = completion.usage.completion_tokens
        record.drafted_tokens = completion.usage.drafted_tokens
        record.accepted_tokens = completion.usage.accepted_tokens
        if record.first_token:
            record.started = record.submitted + completion.timings.queued
        record.finish_reason = completion.finish_reason
        self.end(choice, now, None)

    def end(self, choice: Choice, now: float, error: ApiError | None) -> None:
        """Notify observers, once, that a choice has ended."""
        if choice.is_ended:
            return
        choice.is_ended = True
        record = choice.record
        record.ended = now
        record.status = error.status if error is not None else 499 if self.is_gone else 200
        if error is not None:
            record.finish_reason, record.error = "error", error.message
        for observer in self._observers:
            observer.ended(record)

    # ----------------------------------------------------------------------------------------------- to the call ---

    async def take(self, within: float | None = None) -> News:
        """Return the events since the last call of this method; waits for at least one.

        within: seconds after which an empty result is returned. Raises the ApiError that ended the call.
        """
        if not self._news and self._error is None:
            self._waiter = self._loop.create_future()
            timer = None if within is None else self._loop.call_later(within, self.wake)
            await self._waiter
            if timer is not None:
                timer.cancel()
        if self._news:
            news, self._news = self._news, {}
            return news
        if self._error is not None:
            raise self._error
        return {}

    async def all(self) -> list[Completion]:
        """Return the completions of all choices; ``is_whole`` must have been set before submission."""
        while len(self.completions) < len(self.choices) and self._error is None:
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._error is not None:
            raise self._error
        return [self.completions[number] for number in range(len(self.choices))]

    def wake(self) -> None:
        """Wake a waiting ``take``, which returns without events."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ---------------------------------------------------------------------------------------------------- ending ---

    def abort(self, error: ApiError) -> None:
        """End the call with an error, raised after the events that are queued."""
        if self._error is None:
            self._error = error
        self.wake()

    def leave(self) -> None:
        """Cancel all choices that have not ended, whether queued, in prefill or in decode."""
        self.is_left = True
        self._news = {}
        for choice in list(self.choices):
            if choice.stream is not None and choice.number not in self.completions:
                choice.stream.cancel()

    def check(self) -> None:
        """Raise GoneError if the answer is no longer wanted. Long work calls this in between, on any thread."""
        if self.is_left:
            raise GoneError

    def gone(self) -> None:
        """End the call: the client has left."""
        self.is_gone = True
        self.leave()
        self.abort(ApiError(499, "The client has left."))
