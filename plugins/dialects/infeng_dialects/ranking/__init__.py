"""Routes of rerankers, in the forms of Jina and vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from infeng_serve.api import Route
from infeng_serve.api.dialects import GENERATE, Operation
from msgspec import Meta

from infeng_dialects.ranking.answering import RerankResponse, ScoreResponse, rerank, score
from infeng_dialects.ranking.parameters import PAIRS, RerankRequest, ScoreRequest

_PAIRS = Annotated[ScoreRequest, Meta(extra_json_schema=PAIRS)]
RERANK = ("/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking")
SCORE = ("/v1/score", "/score")


def routes(settings: Mapping[str, Any]) -> dict[str, Route]:
    """Return the routes."""
    found: dict[str, Route] = {}
    for path in RERANK:
        one = Operation("post", path, "Rank documents", RerankRequest, RerankResponse, errors=GENERATE)
        found[path] = Route({"POST": partial(rerank, settings["rank"])}, operations=(one,))
    for path in SCORE:
        one = Operation("post", path, "Score pairs of texts", _PAIRS, ScoreResponse, errors=GENERATE)
        found[path] = Route({"POST": partial(score, settings["rank"])}, operations=(one,))
    return found
