"""/v1/embeddings: pooled final hidden states of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import EndedError, Engine, Request, RequestError, Stream
from infeng_serve.failures import GoneError
from infeng_serve.generating import owned
from infeng_serve.http import Call, Presence
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.embedding_types import EmbeddingRequest, response
from infeng_serve.protocol.errors import ApiError, not_supported, of
from infeng_serve.protocol.prompts import ids_of, number
from infeng_serve.protocol.reading import decode
from infeng_serve.protocol.requests import place
from infeng_serve.service import Service

MOST = 2048
"""Most texts of one call, as in OpenAI's API."""


class Form(Protocol):
    """How calls of one path are read and answered."""

    def read(self, body: bytes, context: Context) -> EmbeddingRequest:
        """Return the texts of a body; raises ApiError."""

    def render(self, vectors: Sequence[NDArray[np.float32]], tokens: int, name: str) -> bytes:
        """Return the body for vectors of (hidden,) float32 each. tokens: of all texts. name: of the model."""


class OpenAI:
    """OpenAI's form. One object for each call."""

    def read(self, body: bytes, context: Context) -> EmbeddingRequest:
        """Return the body itself."""
        self._wanted = decode(body, EmbeddingRequest, context.ignored)
        return self._wanted

    def render(self, vectors: Sequence[NDArray[np.float32]], tokens: int, name: str) -> bytes:
        """Return OpenAI's body."""
        pooling = self._wanted.pooling or "mean"
        return response(vectors, tokens, model=name, encoding_format=self._wanted.encoding_format, pooling=pooling)


async def embeddings(service: Service, call: Call) -> None:
    """Answer a vector for each text, of length 1."""
    await embed(service, call, OpenAI())


async def embed(service: Service, call: Call, form: Form) -> None:
    """Answer one call for vectors."""

    def read(body: bytes, context: Context) -> Work:
        texts = texts_of(form.read(body, context), service, call, context)
        return lambda streams: form.render(texts.embedded(service.model.engine, streams), texts.tokens, texts.name)

    await answer_with_streams(service, call, read)


class Streams(Presence):
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


Work = Callable[[Streams], bytes]
"""Computes a response body; blocks."""


async def answer_with_streams(service: Service, call: Call, read: Callable[[bytes, Context], Work]) -> None:
    """Answer one call whose work waits for requests of the engine.

    read: returns the work for a body; called on a reader thread. The work runs on a thread that may wait.
    """
    with service.taken(call.caller):
        # Before the body is read, so that a refused call costs little.
        service.model.engine.check_room(tenant=call.caller.tenant)
        body, streams, tenant = await service.body(call), Streams(), call.caller.tenant
        call.watch(streams.leave)
        context = replace(service.context(call.id, call.own_id, call.caller), check=streams.check)

        def begun() -> Work:
            context.check()
            return read(body, context)

        work = await service.readers.run(tenant, begun)
        call.extra += context.ignored.headers(call.id)
        try:
            found = await service.waiters.run(tenant, lambda: work(streams))
        except EndedError:
            if streams.is_left:
                raise GoneError from None
            raise
    await call.respond(200, found)


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a call as requests of the engine."""

    requests: Sequence[Request]
    tokens: int
    """Tokens of all requests together."""
    name: str
    """Name of the requested model."""
    pooling: Literal["mean", "last"]

    def embedded(self, engine: Engine, streams: Streams) -> list[NDArray[np.float32]]:
        """Return the vectors. Blocks."""
        streams.check()
        try:
            return engine.embed(self.requests, pooling=self.pooling, started=streams.add)
        except EndedError:
            raise
        except RequestError as error:
            raise of(error, "input") from None


def texts_of(wanted: EmbeddingRequest, service: Service, call: Call, context: Context) -> Texts:
    """Return the requests of a call; raises ApiError."""
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
    return Texts(requests, sum(map(len, prompts)), name, wanted.pooling or "mean")
