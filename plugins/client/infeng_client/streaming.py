"""A stream of chunks that survives its connection: what is sent, what is read, and where it goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

from infeng_client.calls import Call, resumed, streamed
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
from infeng_client.gathering import Gathering
from infeng_client.results import Chunk, Completion, read_chunks
from infeng_client.sending import Give, Read, Reply, Send, Steps, Terms
from infeng_client.sse import Event, Parser

END = "[DONE]"


class Streaming:
    """One call's stream. Before anything has come a failed attempt is repeated; later it is resumed behind the last.

    The first event may say nothing but whose turn it is, and may have no id: a call that got no farther is repeated.
    """

    def __init__(self, call: Call, begin: Callable[[], Terms]) -> None:
        """Take a call that is not yet streamed. begin: called when it is first sent; its time runs from then on."""
        self.gathering = Gathering()
        self.resumes = 0
        """How often the connection broke and the stream went on."""
        self._call = streamed(call)
        self._begin = begin
        self._last: str | None = None
        self._begun = False
        self._ended = False
        self._failed = 0
        self._request_id: str | None = None

    def steps(self) -> Steps[None]:
        """Yield what is to be done until the stream has ended; raises ApiError."""
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
        """Read one response; return what broke it, None if it came to the stream's end."""
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
        yield Read()  # the body's end: only then is the connection free for the next call
        return None

    def _take_all(self, events: Iterable[Event]) -> tuple[list[Chunk], ApiError | None]:
        """Return the chunks of events up to one that is an error, and that error."""
        chunks: list[Chunk] = []
        try:
            for event in events:
                chunks += self._take(event)
        except ApiError as error:
            return chunks, error
        return chunks, None

    def _take(self, event: Event) -> Iterator[Chunk]:
        """Yield the chunks of an event; raises ApiError for one that says what went wrong."""
        if event.data == END:
            self._ended = True
        if self._ended:
            return
        try:
            raw = json.loads(event.data)
        except ValueError:
            raw = None
        if not isinstance(raw, dict):
            raise ServerError(None, f"an event of the stream is no JSON object: {event.data[:80]!r}")
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
            if chunk.usage is not None or chunk.index not in over:  # a resumed stream may repeat how a choice ended
                yield chunk

    def _recover(self, error: ApiError) -> Steps[None]:
        """Wait until it is time to send again; raises the error, or that the stream is broken, where it is not."""
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
            self.resumes += 1  # at once: it was there a moment ago
        else:
            yield wait

    def _give_up(self, error: ApiError) -> None:
        """Raise what ends the stream, unless nothing but its end mark or its usage is missing."""
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
    """What both iterators over a stream tell of it."""

    _streaming: Streaming

    @property
    def text(self) -> str:
        """The first choice's text so far."""
        return self._streaming.gathering.text()

    @property
    def resumes(self) -> int:
        """How often the connection broke and the stream went on."""
        return self._streaming.resumes

    def completion(self) -> Completion:
        """Return what has come so far, as an answer of its own; whole once the iterator has ended."""
        return self._streaming.gathering.completion()
