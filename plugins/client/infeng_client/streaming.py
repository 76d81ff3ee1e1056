"""The logic of a stream that survives broken connections: sending, reading and resuming."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

from infeng_client.calls import Call, resumed, streamed
from infeng_client.collect import Gathering
from infeng_client.errors import (
    ApiError,
    BrokenStreamError,
    ConnectionFailedError,
    NotFoundError,
    OverloadedError,
    ServerError,
    TimedOutError,
    error_in_stream,
)
from infeng_client.results import Chunk, Completion, read_chunks
from infeng_client.sending import Give, Read, Reply, Send, Steps, Terms
from infeng_client.sse import Event, Parser

END = "[DONE]"


class Streaming:
    """One call's stream. A failure before the first chunk repeats the call; a later one resumes after the last event.

    The first event may have only a role and no id; a call that received nothing more is repeated.
    """

    def __init__(self, call: Call, begin: Callable[[], Terms]) -> None:
        """call: not yet marked as streamed. begin: called when it is first sent, which starts its timeout."""
        self.gathering = Gathering()
        self.resumes = 0
        """How often the stream was resumed after its connection broke."""
        self._call = streamed(call)
        self._begin = begin
        self._last: str | None = None
        self._begun = False
        self._ended = False
        self._failed = 0
        self._request_id: str | None = None

    def steps(self) -> Steps[None]:
        """Yield the steps of the whole stream; raises ApiError."""
        self._terms = terms = self._begin()
        while not self._ended:
            call = self._call if self._last is None else resumed(self._last)
            came = yield Send(call, terms.left(), stream=True)
            error = terms.error(came)
            if error is None:
                assert isinstance(came, Reply)
                self._request_id = came.headers.get("x-request-id")
                error = yield from self._read()
            if error is not None:
                yield from self._recover(error)

    def _read(self) -> Steps[ApiError | None]:
        """Read one response; return the error that broke it, None at the stream's end."""
        parser = Parser()
        while not self._ended:
            self._terms.left()
            came = yield Read()
            if isinstance(came, ApiError):
                return came
            assert isinstance(came, bytes)
            if not came:
                return ConnectionFailedError("the connection was closed before the stream's end")
            chunks, error = self._take_all(parser.feed(came))
            if chunks:
                yield Give(chunks)
            if error is not None:
                raise error
        yield Read()  # the end of the body, which frees the connection for the next call
        return None

    def _take_all(self, events: Iterable[Event]) -> tuple[list[Chunk], ApiError | None]:
        """Return the chunks of events up to the first error, and that error."""
        chunks: list[Chunk] = []
        try:
            for event in events:
                chunks += self._take(event)
        except ApiError as error:
            return chunks, error
        return chunks, None

    def _take(self, event: Event) -> Iterator[Chunk]:
        """Yield the chunks of an event; raises ApiError for an error event."""
        if event.data == END:
            self._ended = True
        if self._ended:
            return
        try:
            raw = json.loads(event.data)
        except ValueError:
            raw = None
        if not isinstance(raw, dict):
            raise ServerError(None, f"an event of the stream is not a JSON object: {event.data[:80]!r}")
        if raw.get("error"):
            error = raw["error"]
            fields = error if isinstance(error, dict) else {"message": str(error)}
            raise error_in_stream(fields, self._request_id)
        over = {chunk.index for chunk in read_chunks(raw) if self.gathering.has_ended(chunk.index)}
        self.gathering.add(raw)
        if event.id and event.id != self._last:
            self._last, self._failed = event.id, 0  # progress
        for chunk in read_chunks(raw):
            self._begun = self._begun or bool(self._last or chunk.says_something)
            if chunk.usage is not None or chunk.index not in over:  # a resumed stream may repeat a choice's end
                yield chunk

    def _recover(self, error: ApiError) -> Steps[None]:
        """Wait before the next attempt; raises the error, or BrokenStreamError, if there is none."""
        self._failed += 1
        if not self._begun:
            yield self._terms.wait(self._failed, error)
            return
        hopeful = isinstance(error, ConnectionFailedError | OverloadedError)
        if self._last is None or not hopeful:
            self._give_up(error)
            return
        try:
            wait = self._terms.wait(self._failed, error)
        except ApiError:
            self._give_up(error)
            return
        if self._failed == 1:
            self.resumes += 1  # without a wait: the server just answered
        else:
            yield wait

    def _give_up(self, error: ApiError) -> None:
        """Raise the error that ends the stream, unless only its end marker or its usage is missing."""
        if isinstance(error, TimedOutError):
            raise error
        if self.gathering.have_ended(int((self._call.body or {}).get("n") or 1)):
            self._ended = True
            return
        why = "the server does not know it any more" if isinstance(error, NotFoundError) else error.message
        raise BrokenStreamError(
            f"the stream broke and cannot be resumed: {why}", self.gathering.completion(), request_id=error.request_id
        ) from error


class SoFar:
    """Common properties of both stream iterators."""

    _streaming: Streaming

    @property
    def text(self) -> str:
        """The first choice's text so far."""
        return self._streaming.gathering.text()

    @property
    def resumes(self) -> int:
        """How often the stream was resumed after its connection broke."""
        return self._streaming.resumes

    def completion(self) -> Completion:
        """Return the answer so far, which is complete once the iterator has ended."""
        return self._streaming.gathering.completion()
