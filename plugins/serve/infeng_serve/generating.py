"""A generating call from its body to the end of its answer, streamed or whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from infeng_core.api import Adapters, Request
from infeng_serve.auth import Caller
from infeng_serve.failures import GoneError, failure, reason_of
from infeng_serve.feed import Feed
from infeng_serve.http import Call
from infeng_serve.observers import Record
from infeng_serve.protocol.answer import Answer, Context
from infeng_serve.protocol.errors import ApiError
from infeng_serve.service import Service

Read = Callable[[bytes, Context], Answer]
"""``read`` of a module of the protocol."""

HEAD_SECONDS = 1.0
"""How long a stream's head waits for the first event, so that what goes wrong until then has a status of its own."""


async def generate(service: Service, call: Call, read: Read) -> None:
    """Answer one call; raises ApiError where nothing was sent yet."""
    feed = Feed(call.id, service.observers)
    work = _Work(service, call, feed)
    try:
        service.check_open()
        with service.limits.one_more(call.caller.tenant):
            body = await call.body(service.settings)
            service.check_open()
            call.watch(feed.gone)
            try:
                answer = await service.bridge.submit(feed, lambda: work.read(read, body), work.settle)
                if answer.streams:
                    await _stream(call, feed, answer)
                else:
                    completions = await feed.all()
                    await call.respond(200, answer.body(completions))
            finally:
                service.bridge.close(feed)
    except GoneError:
        raise
    except Exception as error:
        told = failure(error, call.id)
        if not any(choice.stream is not None for choice in feed.choices):
            work.reject(told)
        if feed.is_gone or call.is_started:
            raise GoneError from error
        raise told from error


async def _stream(call: Call, feed: Feed, answer: Answer) -> None:
    """Send frames as they come: one piece for all that a step, or several while the client was slow, has brought."""
    news = await feed.take(HEAD_SECONDS)
    await call.begin()
    data, left = answer.opening(), len(answer.requests)
    try:
        while True:
            for number, events in news.items():
                data += answer.frames(number, events)
                left -= events[-1].completion is not None
            if not left:
                await call.write(data + answer.closing(), is_last=True)
                return
            if data:
                await call.write(data)
                data = b""
            news = await feed.take()
    except Exception as error:
        if feed.is_gone:
            raise GoneError from error
        await call.write(answer.failed(failure(error, call.id)), is_last=True)


@dataclass(slots=True)
class _Work:
    """What is done for a call on a thread of the pool, and what is known of it for observers."""

    service: Service
    call: Call
    feed: Feed
    model: str = ""
    count: int = 0
    adapters: dict[int, str] = field(default_factory=dict)

    def read(self, read: Read, body: bytes) -> Answer:
        """Return the answer that a body asks for; raises ApiError 400 for what is no JSON."""
        context = self.service.context(self.call.id, self.call.caller)
        find = context.adapter_of

        def noted(model: str) -> Adapters | None:
            self.model = self.model or model
            return find(model)

        try:
            body.decode("utf-8")
            return read(body, replace(context, adapter_of=noted))
        except UnicodeDecodeError as error:
            raise ApiError(400, f"The body is not UTF-8 (byte {error.start}).", code="invalid_json") from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise ApiError(400, f"The body is not as it has to be: {error}.", code="invalid_json") from None

    def settle(self, request: Request) -> tuple[Request, Record]:
        """Return a request in the name of its tenant and within the server's time, and its record."""
        most, caller = self.service.settings.request_timeout, self.call.caller
        timeout = min(request.timeout or most, most) if most else request.timeout
        request = replace(request, tenant=caller.tenant, cache_salt=salted(caller, request.cache_salt), timeout=timeout)
        record = self._record()
        record.id = f"{self.call.id}-{self.count}" if self.count else self.call.id
        self.count += 1
        record.adapter = _named(request.adapter)
        params = request.params
        record.max_tokens, record.temperature, record.top_p = params.max_tokens, params.temperature, params.top_p
        return request, record

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


def salted(caller: Caller, salt: str) -> str:
    """Return what a request's computed beginning is shared under: the tenant, and what it gives itself."""
    return f"{len(caller.tenant)}:{caller.tenant}:{salt}" if caller.tenant else salt


def _named(adapter: Adapters | None) -> str:
    if adapter is None or isinstance(adapter, str):
        return adapter or ""
    return "+".join(name for name, _ in adapter)
