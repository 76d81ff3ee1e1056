"""A generating call from its body to the end of its answer, streamed or whole; and one that is answered again."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import msgspec

from infeng_core.api import Adapters, Request
from infeng_core.api.servers import draw_seed
from infeng_serve.auth import Caller
from infeng_serve.event_queue import EventQueue, News
from infeng_serve.failures import GoneError, failure, reason_of
from infeng_serve.http import Call
from infeng_serve.journal import Entry
from infeng_serve.keepalive import KeepAlive, comment
from infeng_serve.observers import Record
from infeng_serve.protocol.answer import Answer, Context
from infeng_serve.protocol.errors import ApiError
from infeng_serve.protocol.unknown import Ignored
from infeng_serve.service import Service

Read = Callable[[bytes, Context], Answer]
"""``read`` of a module of the protocol."""

STREAMS = "/v1/streams/"
"""Below this path are calls of the journal, by their own ids: what clients call them may name two."""

HEAD_SECONDS = 1.0
"""How long a stream's head waits for the first event, so that what goes wrong until then has a status of its own."""


class Asked(Protocol):
    """What is known of a call, whichever way it came."""

    id: str
    """As the client names it, perhaps another call too."""
    own_id: str
    """The server's, which no other call has."""
    path: str
    caller: Caller
    wall: float
    """Seconds since 1970."""
    arrived: float
    """Seconds of ``time.perf_counter``."""

    @property
    def client(self) -> str:
        """The address that it came from."""

    def header(self, name: bytes) -> str:
        """Return a header's value, or that of metadata, "" without it; ``name`` is in lower case."""


async def generate(service: Service, call: Call, read: Read) -> None:
    """Answer one call; raises ApiError where nothing was sent yet.

    One whose Idempotency-Key was there before gets the answer of that call, byte for byte.
    """
    key = call.header(b"idempotency-key")

    async def asked() -> tuple[bytes, Entry | None]:
        body = await service.body(call)
        return body, service.idempotency.entry(call, key, body)

    with service.idempotency.one_at_a_time(call, key):
        await _answer(call, Work(service, call, EventQueue(call.id, service.observers), key), read, asked)


async def resume(service: Service, call: Call, reads: Mapping[str, Read]) -> None:
    """Go on with the stream of a call in the journal, behind the frame that Last-Event-ID names.

    Raises ApiError 404 for a call that is not there, 409 for one whose answer would have other bytes now.
    """
    service.check_open()
    entry = service.journal.find(call.caller.tenant, call.path.removeprefix(STREAMS))
    if entry is None or entry.path not in reads:
        raise ApiError(404, "There is no such stream, or it is not kept any more.", code="stream_not_found")
    service.idempotency.check_same(entry)
    work = Work(service, call, EventQueue(call.id, service.observers), "", call.header(b"last-event-id"))

    async def asked() -> tuple[bytes, Entry | None]:
        return entry.body, entry

    await _answer(call, work, reads[entry.path], asked)


async def _answer(
    call: Call, work: Work, read: Read, asked: Callable[[], Awaitable[tuple[bytes, Entry | None]]]
) -> None:
    """Answer one call, of whose body and entry in the journal ``asked`` tells."""
    service, queue = work.service, work.queue
    try:
        with service.taken(call.caller):
            # Before the body is read: a call that is refused is to cost little.
            service.bridge.check_room(call.caller.tenant)
            body, work.entry = await asked()
            service.check_open()
            call.watch(queue.gone)
            try:
                reading = partial(work.read, read, body)
                answer = await service.bridge.submit(call.caller.tenant, queue, reading, work.settle)
                call.extra += work.ignored.headers(call.id)
                await work.keep(body)
                del body, reading  # they may be large, and the answer take long
                if answer.streams:
                    await _stream(call, work, answer, service.settings.stream_keep_alive)
                else:
                    completions = await queue.all()
                    await work.compare_adapters()
                    await call.respond(200, answer.body(completions))
            finally:
                service.bridge.close(queue)
    except GoneError:
        raise
    except Exception as error:
        told = failure(error, call.id, queue.paths)
        if not any(choice.stream is not None for choice in queue.choices):
            work.reject(told)
        if queue.is_gone or call.is_started:
            raise GoneError from error
        raise told from error


async def _stream(call: Call, work: Work, answer: Answer, seconds: float) -> None:
    """Send frames as they come: one piece for all that a step, or several while the client was slow, has brought.

    seconds: without a byte, after which a comment is sent; 0: none is.
    """
    queue = work.queue
    news = await queue.take(HEAD_SECONDS)
    if news:
        await work.compare_adapters()
    await call.begin()
    data, left, keepalive = answer.opening(), len(answer.requests), KeepAlive(seconds, queue.wake)

    def at_once(news: News) -> bool:
        """Send what comes between the first frames and the last without waking this task: that would cost as much."""
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
                data = comment(has_ids=answer.numbered)
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
    """What is done for a call on a thread of the pool, and what is known of it for observers."""

    service: Service
    call: Asked
    queue: EventQueue
    key: str = ""
    """The client's Idempotency-Key."""
    last_id: str = ""
    """Of the last frame that the client has."""
    entry: Entry | None = None
    """What is answered again; None for a call that is new."""
    has_compared: bool = False
    """Whether the adapters that answer are those of the journal."""
    model: str = ""
    created: int = 0
    requests: list[Request] = field(default_factory=list)
    ignored: Ignored = field(default_factory=Ignored)
    """What the call asks for without effect."""
    _kept: Entry | None = None  # of a new call, until its adapters are known

    def read(self, read: Read, body: bytes) -> Answer:
        """Return the answer that a body asks for; raises ApiError 400 for what is no JSON."""
        try:
            body.decode("utf-8")
            answer = read(body, self.context())
            answer.numbered = self.service.journal.is_kept
            if self.last_id:
                answer.resume(self.last_id)
            return answer
        except UnicodeDecodeError as error:
            raise ApiError(400, f"The body is not UTF-8 (byte {error.start}).", code="invalid_json") from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise ApiError(400, f"The body is not as it has to be: {error}.", code="invalid_json") from None

    def context(self) -> Context:
        """Return what the protocol knows of the call; the model that it asks for is noted."""
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
        """Return a request in the name of its tenant and within the server's time, and its record."""
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
        """Return a request that gives the same tokens whenever it is asked again, where that may happen."""
        if self.entry is not None:
            return replace(request, params=replace(request.params, seed=self.entry.seeds[number]))
        if request.params.seed is None and (self.key or self.service.journal.is_kept):
            return replace(request, params=replace(request.params, seed=draw_seed()))
        return request

    async def keep(self, body: bytes) -> None:
        """Write the call to the journal, before its answer begins."""
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
        """Compare the contents of the adapters with the journal's, or write them there, where they are new.

        To be called before any text is sent: adapters have been read then, which they need not have been when the call
        came. Raises ApiError 409 for a call that would now get another answer.
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
        """Tell observers that nothing of the call was accepted."""
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
    """Return a request in the name of its tenant, that ends after ``most_seconds`` (0: any time) if not sooner."""
    timeout = request.timeout
    if most_seconds:
        timeout = most_seconds if timeout is None else min(timeout, most_seconds)
    return replace(request, tenant=caller.tenant, cache_salt=salted(caller, request.cache_salt), timeout=timeout)


def salted(caller: Caller, salt: str) -> str:
    """Return what a request's computed beginning is shared under: the tenant, and what it gives itself."""
    return f"{len(caller.tenant)}:{caller.tenant}:{salt}" if caller.tenant else salt


def _named(adapter: Adapters | None) -> str:
    if adapter is None or isinstance(adapter, str):
        return adapter or ""
    return "+".join(name for name, _ in adapter)
