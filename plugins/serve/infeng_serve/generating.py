"""Generating calls from body to end of answer, streamed or whole; and calls of the journal that are replayed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from infeng_core.api import Adapters, Request
from infeng_core.api.servers import draw_seed
from infeng_serve.auth import Caller
from infeng_serve.bridge import HasRequests
from infeng_serve.event_queue import EventQueue, News
from infeng_serve.failures import GoneError, failure, reason_of
from infeng_serve.http import Call
from infeng_serve.journal import Entry
from infeng_serve.keepalive import KeepAlive
from infeng_serve.observers import Record
from infeng_serve.protocol.answer import Answer, Context, Read
from infeng_serve.protocol.errors import ApiError
from infeng_serve.protocol.unknown_parameters import Ignored
from infeng_serve.service import Service

_A = TypeVar("_A", bound=HasRequests)

STREAMS = "/v1/streams/"
"""Path prefix of the journal's calls by server id, since ids that clients give need not be unique."""

HEAD_SECONDS = 1.0
"""Seconds for which a stream's head waits for the first event: an error until then gets its own HTTP status."""


class Asked(Protocol):
    """A call's properties, common to HTTP and gRPC."""

    id: str
    """The client's id, which need not be unique."""
    own_id: str
    """The server's unique id."""
    path: str
    caller: Caller
    wall: float
    """Seconds since 1970."""
    arrived: float
    """Seconds of ``time.perf_counter``."""
    is_started: bool
    """Whether a part of the answer was sent, after which no error can be."""

    @property
    def client(self) -> str:
        """The client's address."""

    def header(self, name: bytes) -> str:
        """Return the value of a header or of gRPC metadata, "" if it is absent; ``name`` is in lower case."""


async def generate(service: Service, call: Call, read: Read) -> None:
    """Answer one call; raises ApiError if nothing was sent yet.

    A call with a known Idempotency-Key gets the answer of the first call with it, byte for byte.
    """
    key = call.header(b"idempotency-key")

    async def asked() -> tuple[bytes, Entry | None]:
        body = await service.body(call)
        return body, service.idempotency.entry(call, key, body)

    with service.idempotency.one_at_a_time(call, key):
        await _answer(call, Work(service, call, EventQueue(call.id, service.observers), key), read, asked)


async def resume(service: Service, call: Call) -> None:
    """Resume the stream of a call in the journal after the frame that Last-Event-ID names.

    Raises ApiError 404 for an unknown call, 409 for one whose answer would have other bytes now.
    """
    service.check_open()
    entry = service.journal.find(call.caller.tenant, call.path.removeprefix(STREAMS))
    if entry is None or entry.path not in service.reads:
        raise ApiError(404, "There is no such stream, or it is not kept any more.", code="stream_not_found")
    service.idempotency.check_same(entry)
    work = Work(service, call, EventQueue(call.id, service.observers), "", call.header(b"last-event-id"))

    async def asked() -> tuple[bytes, Entry | None]:
        return entry.body, entry

    await _answer(call, work, service.reads[entry.path], asked)


async def _answer(
    call: Call, work: Work, read: Read, asked: Callable[[], Awaitable[tuple[bytes, Entry | None]]]
) -> None:
    """Answer one call. asked: returns its body and its entry in the journal."""
    service, queue = work.service, work.queue
    async with work.under_way():
        # Before the body is read, so that a refused call costs little.
        service.bridge.check_room(call.caller.tenant)
        body, work.entry = await asked()
        service.check_open()
        call.watch(queue.gone)
        answer = await work.submit(partial(work.read, read, body))
        call.extra += work.ignored.headers(call.id)
        await work.keep(body)
        del body  # free a large object during a long answer
        if answer.streams:
            await _stream(call, work, answer, service.settings.stream_keep_alive)
        else:
            completions = await queue.all()
            await work.compare_adapters()
            await call.respond(200, answer.body(completions))


async def _stream(call: Call, work: Work, answer: Answer, seconds: float) -> None:
    """Send frames as they come: one write for a step's events, or for those of several steps if the client is slow.

    seconds: silence after which the stream is kept open by ``Answer.idle``; 0: never.
    """
    queue = work.queue
    news = await queue.take(HEAD_SECONDS)
    if news:
        await work.compare_adapters()
    await call.begin(answer.kind)
    data, left, keepalive = answer.opening(), len(answer.requests), KeepAlive(seconds, queue.wake)

    def at_once(news: News) -> bool:
        """Send frames between the first and the last without waking this task, which would double their cost."""
        is_between = all(events[-1].completion is None for events in news.values())
        if not (is_between and work.has_compared and call.keeps_up):
            return False
        if data := b"".join([answer.frames(number, events) for number, events in news.items()]):
            call.write_now(data)
            keepalive.written()
        return True

    queue.at_once = at_once
    try:
        while True:
            for number, events in news.items():
                data += answer.frames(number, events)
                left -= events[-1].completion is not None
            if not left:
                await call.write(data + answer.closing(), is_last=True)
                return
            if not news and not data and seconds:
                data = answer.idle()
            if data:
                await call.write(data)
                keepalive.written()
                data = b""
            news = await queue.take()
            if news and not work.has_compared:
                await work.compare_adapters()
    except Exception as error:
        if queue.is_gone:
            raise GoneError from error
        await call.write(answer.failed(failure(error, call.id)), is_last=True)
    finally:
        keepalive.close()


@dataclass(slots=True)
class Work:
    """A call's work on pool threads, and its data for observers."""

    service: Service
    call: Asked
    queue: EventQueue
    key: str = ""
    """The client's Idempotency-Key."""
    last_id: str = ""
    """Id of the last frame that the client has."""
    entry: Entry | None = None
    """The journal's entry of a replayed call; None for a new one."""
    has_compared: bool = False
    """Whether the adapters were compared with the journal's."""
    model: str = ""
    created: int = 0
    requests: list[Request] = field(default_factory=list)
    ignored: Ignored = field(default_factory=Ignored)
    """The call's parameters that have no effect."""
    _kept: Entry | None = None  # entry of a new call, until its adapters are known

    @contextlib.asynccontextmanager
    async def under_way(self) -> AsyncIterator[None]:
        """Count the call while it runs, and cancel its unfinished requests afterwards.

        An error becomes an ApiError, or a GoneError if it cannot be sent. Observers are notified of a call that was
        rejected before its requests were submitted.
        """
        queue, call = self.queue, self.call
        try:
            with self.service.taken(call.caller):
                try:
                    yield
                finally:
                    self.service.bridge.close(queue)
        except GoneError:
            raise
        except Exception as error:
            told = failure(error, call.id, queue.paths)
            if not any(choice.stream is not None for choice in queue.choices):
                self.reject(told)
            if queue.is_gone or call.is_started:
                raise GoneError from error
            raise told from error

    async def submit(self, read: Callable[[], _A]) -> _A:
        """Return the answer that ``read`` returns on a reader thread, with its requests submitted to the engine."""
        return await self.service.bridge.submit(self.call.caller.tenant, self.queue, read, self.settle)

    def read(self, read: Read, body: bytes) -> Answer:
        """Parse a body and return its answer; raises ApiError 400 for a body that is not JSON."""
        try:
            body.decode("utf-8")
            answer = read(body, self.context())
            answer.numbered = self.service.journal.is_kept and self._path in self.service.reads
            if self.last_id:
                answer.resume(self.last_id)
            return answer
        except UnicodeDecodeError as error:
            raise ApiError(400, f"The body is not UTF-8 (byte {error.start}).", code="invalid_json") from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise ApiError(400, f"The body is malformed: {error}.", code="invalid_json") from None

    @property
    def _path(self) -> str:
        """The path of the call, or of the one that is replayed."""
        return self.call.path if self.entry is None else self.entry.path

    def context(self) -> Context:
        """Return the protocol's context of the call, which records the requested model."""
        context = self.service.context(self.call.id, self.call.own_id, self.call.caller)
        context = replace(context, check=self.queue.check)
        if self.entry is not None:
            entry = self.entry
            context = replace(context, id=entry.name or entry.id, own_id=entry.id, created=entry.created)
        self.created, self.ignored = context.created, context.ignored
        find = context.adapter_of

        def noted(model: str) -> Adapters | None:
            self.model = self.model or model
            return find(model)

        return replace(context, adapter_of=noted)

    def settle(self, request: Request) -> tuple[Request, Record]:
        """Return a request with its tenant and time limit set, and its record."""
        request = owned(request, self.call.caller, self.service.settings.request_timeout)
        number, record = len(self.requests), self._record()
        request = self._seeded(request, number)
        record.id = f"{self.call.id}-{number}" if number else self.call.id
        self.requests.append(request)
        record.adapter = _named(request.adapter)
        params = request.params
        record.max_tokens, record.temperature, record.top_p = params.max_tokens, params.temperature, params.top_p
        return request, record

    def _seeded(self, request: Request, number: int) -> Request:
        """Return the request with a fixed seed if the call may be replayed."""
        if self.entry is not None:
            return replace(request, params=replace(request.params, seed=self.entry.seeds[number]))
        if request.params.seed is None and (self.key or self.service.journal.is_kept):
            return replace(request, params=replace(request.params, seed=draw_seed()))
        return request

    async def keep(self, body: bytes) -> None:
        """Write the call to the journal. Must complete before its answer begins."""
        journal = self.service.journal
        if self.entry is not None or not (self.key or journal.is_kept):
            return
        call = self.call
        entry = Entry(
            call.own_id,
            call.path,
            call.caller.tenant,
            self.created,
            body,
            tuple(request.params.seed or 0 for request in self.requests),
            adapters=self.service.idempotency.contents(self.requests),
            key=self.key,
            name=call.id if call.id != call.own_id else "",
        )
        await self._write(entry)
        self._kept = entry if entry.is_open else None

    async def compare_adapters(self) -> None:
        """Compare the adapters' content ids with the journal's, or for a new call write them there.

        Must be called before any text is sent, when the adapters have been read. Raises ApiError 409 if a replayed call
        would get another answer.
        """
        self.has_compared = True
        idempotency, kept = self.service.idempotency, self.entry or self._kept
        if self.entry is not None:
            idempotency.check_same(self.entry)
        if kept is not None and kept.is_open:
            await self._write(msgspec.structs.replace(kept, adapters=idempotency.contents(self.requests)))
        self._kept = None

    async def _write(self, entry: Entry) -> None:
        journal = self.service.journal
        if journal.is_kept:
            await self.service.bridge.run(entry.tenant, lambda: journal.add(entry))
        else:
            journal.add(entry)

    def reject(self, error: ApiError) -> None:
        """Notify observers that the call was rejected."""
        record = self._record()
        record.status, record.error = error.status, error.message
        record.ended = time.perf_counter()
        for observer in self.service.observers:
            observer.rejected(record, reason_of(error))

    def _record(self) -> Record:
        call = self.call
        return Record(
            call.id,
            call.path,
            call.caller.tenant,
            self.model,
            client=call.client,
            traceparent=call.header(b"traceparent"),
            wall=call.wall,
            arrived=call.arrived,
        )


def owned(request: Request, caller: Caller, most_seconds: float) -> Request:
    """Return the request with the caller's tenant and a time limit of ``most_seconds`` (0: none)."""
    timeout = request.timeout
    if most_seconds:
        timeout = most_seconds if timeout is None else min(timeout, most_seconds)
    return replace(request, tenant=caller.tenant, cache_salt=salted(caller, request.cache_salt), timeout=timeout)


def salted(caller: Caller, salt: str) -> str:
    """Return the salt of the prefix cache for a request: its tenant and the salt that the call gives."""
    return f"{len(caller.tenant)}:{caller.tenant}:{salt}" if caller.tenant else salt


def _named(adapter: Adapters | None) -> str:
    if adapter is None or isinstance(adapter, str):
        return adapter or ""
    return "+".join(name for name, _ in adapter)
