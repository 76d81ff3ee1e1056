"""Bodies of /v1/embeddings."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from infeng_serve.protocol.parameters import PRIORITY, SECONDS
from infeng_serve.protocol.prompts import PROMPT_SCHEMA


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/embeddings."""

    model: Annotated[str | None, Meta(description="the base model's name or an adapter's; the base if not given")] = (
        None
    )
    input: Annotated[
        str | list[Any],
        Meta(description="a text, texts, token ids, or lists of them", extra_json_schema=PROMPT_SCHEMA),
    ]
    encoding_format: Annotated[
        Literal["float", "base64"] | None, Meta(description="base64 is little-endian float32")
    ] = None
    dimensions: Annotated[
        int | None, Meta(description="only the model's own number", extra_json_schema={"minimum": 1})
    ] = None
    pooling: Annotated[
        Literal["mean", "last"] | None, Meta(description="of the hidden states of all tokens, or the last one's")
    ] = None
    priority: Annotated[int | None, PRIORITY] = None
    timeout: Annotated[
        float | None, Meta(description="seconds after which the call ends with an error", extra_json_schema=SECONDS)
    ] = None
    user: Annotated[str | None, Meta(description="ignored")] = None


class Embedding(msgspec.Struct, kw_only=True):
    """The vector of one text."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, kw_only=True):
    """Tokens that the call took."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(msgspec.Struct, kw_only=True):
    """The vectors of all texts, in their order."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    pooling: Annotated[Literal["mean", "last"], Meta(description="how the vectors were made")] = "mean"


def response(
    vectors: Sequence[NDArray[np.float32]],
    prompt_tokens: int,
    *,
    model: str,
    encoding_format: Literal["float", "base64"] | None,
    pooling: Literal["mean", "last"],
) -> bytes:
    """Return the body for vectors of (hidden,) float32 each."""
    data = [
        Embedding(index=index, embedding=_encoded(vector, encoding_format == "base64"))
        for index, vector in enumerate(vectors)
    ]
    usage = EmbeddingUsage(prompt_tokens=prompt_tokens, total_tokens=prompt_tokens)
    return msgspec.json.encode(EmbeddingResponse(data=data, model=model, usage=usage, pooling=pooling))


def _encoded(vector: NDArray[np.float32], is_base64: bool) -> list[float] | str:
    if is_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(value) for value in vector]
