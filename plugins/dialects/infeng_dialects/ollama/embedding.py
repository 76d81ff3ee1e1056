"""/api/embed and /api/embeddings."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import numpy as np
from infeng_serve.api import Call, Service
from infeng_serve.api.dialects import Context, EmbeddingRequest, decode, embed
from numpy.typing import NDArray

from infeng_dialects.ollama import names
from infeng_dialects.ollama.parameters import EmbeddingsRequest, EmbedRequest


class EmbedResponse(msgspec.Struct, kw_only=True):
    """The vectors of all texts, in their order. Durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class EmbeddingsResponse(msgspec.Struct, kw_only=True):
    """The vector of a text."""

    embedding: list[float]


class Several:
    """A call of /api/embed."""

    def read(self, body: bytes, context: Context) -> EmbeddingRequest:
        """Return the texts."""
        self._begin = time.perf_counter()
        given = decode(body, EmbedRequest, context.ignored)
        self._name = given.model
        return EmbeddingRequest(
            model=names.known(given.model, context),
            input=given.input if isinstance(given.input, str) else [*given.input],
            dimensions=given.dimensions,
        )

    def render(self, vectors: Sequence[NDArray[np.float32]], tokens: int, name: str) -> bytes:
        """Return the response body."""
        took = round((time.perf_counter() - self._begin) * 1e9)
        found = [vector.tolist() for vector in vectors]
        return msgspec.json.encode(
            EmbedResponse(model=self._name, embeddings=found, total_duration=took, prompt_eval_count=tokens)
        )


class One:
    """A call of /api/embeddings."""

    def read(self, body: bytes, context: Context) -> EmbeddingRequest:
        """Return the text."""
        given = decode(body, EmbeddingsRequest, context.ignored)
        return EmbeddingRequest(model=names.known(given.model, context), input=given.prompt)

    def render(self, vectors: Sequence[NDArray[np.float32]], tokens: int, name: str) -> bytes:
        """Return the response body."""
        return msgspec.json.encode(EmbeddingsResponse(embedding=vectors[0].tolist()))


async def several(service: Service, call: Call) -> None:
    """Answer a vector for each text."""
    await embed(service, call, Several())


async def one(service: Service, call: Call) -> None:
    """Answer the vector of a text."""
    await embed(service, call, One())
