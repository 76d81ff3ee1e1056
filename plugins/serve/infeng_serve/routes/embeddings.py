"""Vectors of texts: what the model's head would read of their tokens, pooled."""

from __future__ import annotations

from dataclasses import replace

from infeng_core.api import EndedError, Request, Stream
from infeng_serve.failures import GoneError
from infeng_serve.generating import owned
from infeng_serve.http import Call
from infeng_serve.protocol.embedding_types import EmbeddingRequest, response
from infeng_serve.protocol.errors import ApiError, not_supported
from infeng_serve.protocol.prompts import ids_of
from infeng_serve.protocol.reading import decode
from infeng_serve.protocol.requests import place
from infeng_serve.service import Service

MOST = 2048
"""Texts of one call, as OpenAI has it."""


async def embeddings(service: Service, call: Call) -> None:
    """Answer a vector for each text, of length 1."""
    with service.taken(call.caller):
        wanted = decode(await call.body(service.settings), EmbeddingRequest)
        service.model.engine.check_room()
        streams = _Streams()
        call.watch(streams.leave)
        try:
            body = await service.bridge.run(lambda: _embedded(service, call, wanted, streams))
        except EndedError:
            if streams.is_left:
                raise GoneError from None
            raise
    await call.respond(200, body)


class _Streams:
    """The requests of one call, which end when its client leaves."""

    def __init__(self) -> None:
        """Have none yet."""
        self.is_left = False
        self._streams: list[Stream] = []

    def add(self, stream: Stream) -> None:
        """Take one that has started; on the thread that starts them."""
        self._streams.append(stream)
        if self.is_left:
            stream.cancel()

    def leave(self) -> None:
        """Cancel them, and those that are still to come."""
        self.is_left = True
        for stream in list(self._streams):
            stream.cancel()


def _embedded(service: Service, call: Call, wanted: EmbeddingRequest, streams: _Streams) -> bytes:
    context = service.context(call.id, call.caller)
    engine, name = service.model.engine, wanted.model or context.model
    adapter = context.adapter_of(name)
    hidden = engine.model.config.hidden
    if wanted.dimensions not in (None, hidden):
        raise not_supported("dimensions", f"vectors have {hidden} dimensions: leave it out")
    prompts, _ = ids_of(wanted.input, context, "input")
    if len(prompts) > MOST:
        raise ApiError(400, f"input: there are {len(prompts)} texts, at most {MOST} are taken.", param="input")
    priority, timeout = place(wanted.priority, wanted.timeout)
    request = Request((), priority=priority, adapter=adapter, timeout=timeout)
    request = owned(request, call.caller, service.settings.request_timeout)
    pooling = wanted.pooling or "mean"
    requests = [replace(request, prompt=tuple(ids)) for ids in prompts]
    vectors = engine.embed(requests, pooling=pooling, started=streams.add)
    tokens = sum(map(len, prompts))
    return response(vectors, tokens, model=name, encoding_format=wanted.encoding_format, pooling=pooling)
