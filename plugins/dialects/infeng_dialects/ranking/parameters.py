"""Bodies of the routes that rank and score. docs/serving-requests.md prints the descriptions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from infeng_serve.api.dialects import PRIORITY, SECONDS
from msgspec import Meta

_DOCUMENT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
_TEXTS: dict[str, Any] = {"minItems": 1, "items": {"anyOf": [{"type": "string"}, _DOCUMENT]}}

_TIMEOUT = Meta(description="seconds after which the call ends with an error", extra_json_schema=SECONDS)


class Ranking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of both routes."""

    model: Annotated[str | None, Meta(description="the base model's name or an adapter's; the base if not given")] = (
        None
    )
    instruction: Annotated[
        str | None, Meta(description="what makes a document relevant, for a model that answers yes or no")
    ] = None
    pooling: Annotated[
        Literal["mean", "last"] | None, Meta(description="of embeddings, for a model that is ranked by their cosine")
    ] = None
    priority: Annotated[int | None, PRIORITY] = None
    timeout: Annotated[float | None, _TIMEOUT] = None
    user: Annotated[str | None, Meta(description="ignored")] = None


class RerankRequest(Ranking, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/rerank."""

    query: Annotated[str, Meta(description="what is looked for")]
    documents: Annotated[list[Any], Meta(description="texts, or objects with a text", extra_json_schema=_TEXTS)]
    top_n: Annotated[int | None, Meta(description="so many of the best alone", extra_json_schema={"minimum": 1})] = None
    return_documents: Annotated[bool | None, Meta(description="false: results without the documents")] = None


class ScoreRequest(Ranking, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/score."""

    text_1: Annotated[str | list[str] | None, Meta(description="a query, or one for each document")] = None
    text_2: Annotated[str | list[str] | None, Meta(description="a document, or several")] = None
    queries: Annotated[str | list[str] | None, Meta(description="another name of text_1")] = None
    documents: Annotated[str | list[str] | None, Meta(description="another name of text_2")] = None


_SOME = {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "items": {"type": "string"}}]}
PAIRS: dict[str, Any] = {
    "anyOf": [
        {
            "required": [first, second],
            "properties": {
                **{name: {"type": "null"} for name in ("text_1", "text_2", "queries", "documents")},
                first: _SOME,
                second: _SOME,
            },
        }
        for first in ("text_1", "queries")
        for second in ("text_2", "documents")
    ]
}
"""JSON Schema of the rule that pairs need both of their texts."""
