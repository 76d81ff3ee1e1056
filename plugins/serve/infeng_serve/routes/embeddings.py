"""/v1/embeddings: pooled final hidden states of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from infeng_core.api import EndedError, Engine, Request, RequestError, Stream
from infeng_serve.failures import GoneError
from infeng_serve.generating import owned
from infeng_serve.http import Call, Presence
from infeng_serve.protocol.embedding_types import EmbeddingRequest, response
from infeng_serve.protocol.errors import ApiError, not_supported, of
from infeng_serve.protocol.prompts import ids_of, number
from infeng_serve.protocol.reading import decode
from infeng_serve.protocol.requests import place
from infeng_serve.protocol.unknown_parameters import Ignored
from infeng_serve.service import Service

MOST = 2048
"""Most texts of one call, as in OpenAI's API."""


async def embeddings(service: Service, call: Call) -> None:
    """Answer a vector for each text, of length 1."""
    with service.taken(call.caller):
        # Before the body is read, so that a refused call costs little.
        service.model.engine.check_room(tenant=call.caller.tenant)
        body, streams, tenant = await service.body(call), _Streams(), call.caller.tenant
        call.watch(streams.leave)
        ignored = service.ignored()
        texts = await service.readers.run(tenant, lambda: _read(service, call, body, ignored, streams))
        call.extra += ignored.headers(call.id)
        try:
            body = await service.waiters.run(tenant, lambda: texts.embedded(service.model.engine, streams))
        except EndedError:
            if streams.is_left:
                raise GoneError from None
            raise
    await call.respond(200, body)


class _Streams(Presence):
    """The requests of one call, which end when its client leaves."""

    def __init__(self) -> None:
        """Start without requests."""
        super().__init__()
        self._streams: list[Stream] = []

    def add(self, stream: Stream) -> None:
        """Add a started request. Called on the thread that starts them."""
        self._streams.append(stream)
        if self.is_left:
            stream.cancel()

    def leave(self) -> None:
        """Cancel all requests, including those added later."""
        super().leave()
        for stream in list(self._streams):
            stream.cancel()


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts of a call as requests of the engine."""

    requests: Sequence[Request]
    tokens: int
    """Tokens of all requests together."""
    name: str
    """Name of the requested model."""
    wanted: EmbeddingRequest

    def embedded(self, engine: Engine, streams: _Streams) -> bytes:
        """Compute the vectors and return the response body. Blocks."""
        streams.check()
        pooling = self.wanted.pooling or "mean"
        try:
            vectors = engine.embed(self.requests, pooling=pooling, started=streams.add)
        except EndedError:
            raise
        except RequestError as error:
            raise of(error, "input") from None
        encoding = self.wanted.encoding_format
        return response(vectors, self.tokens, model=self.name, encoding_format=encoding, pooling=pooling)


def _read(service: Service, call: Call, body: bytes, ignored: Ignored, streams: _Streams) -> _Texts:
    streams.check()
    wanted = decode(body, EmbeddingRequest, ignored)
    context = replace(service.context(call.id, call.own_id, call.caller), check=streams.check)
    engine, name = service.model.engine, wanted.model or context.model
    adapter = context.adapter_of(name)
    hidden = engine.model.config.hidden
    if wanted.dimensions not in (None, hidden):
        raise not_supported("dimensions", f"vectors have {hidden} dimensions: leave it out")
    if (texts := number(wanted.input)) > MOST:
        raise ApiError(400, f"input: there are {texts} texts, at most {MOST} are taken.", param="input")
    prompts, _ = ids_of(wanted.input, context, "input")
    priority, timeout = place(wanted.priority, wanted.timeout)
    request = Request((), priority=priority, adapter=adapter, timeout=timeout)
    request = owned(request, call.caller, service.settings.request_timeout)
    requests = [replace(request, prompt=tuple(ids)) for ids in prompts]
    return _Texts(requests, sum(map(len, prompts)), name, wanted)
