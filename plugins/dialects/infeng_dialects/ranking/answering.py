"""/v1/rerank and /v1/score: bodies to pairs, and scores to answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from infeng_serve.api import Call, Service
from infeng_serve.api.dialects import (
    MOST_REQUESTS,
    Context,
    Work,
    answer_with_streams,
    check_length,
    decode,
    invalid,
)
from msgspec import Meta

from infeng_dialects.ranking.pairs import Pair, Scores, kind_of, scoring
from infeng_dialects.ranking.parameters import Ranking, RerankRequest, ScoreRequest


class RankedDocument(msgspec.Struct, kw_only=True):
    """A document of the call."""

    text: str


class Ranked(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A document with its score."""

    index: Annotated[int, Meta(description="its place in the call")]
    document: RankedDocument | None = None
    relevance_score: Annotated[float, Meta(description="the probability of yes, or a cosine")]


class RankUsage(msgspec.Struct, kw_only=True):
    """Tokens that the call took."""

    prompt_tokens: int
    total_tokens: int


class RerankResponse(msgspec.Struct, kw_only=True):
    """The documents, the most relevant first."""

    id: str
    object: Literal["list"] = "list"
    model: str
    usage: RankUsage
    results: list[Ranked]


class Score(msgspec.Struct, kw_only=True):
    """The score of one pair."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreResponse(msgspec.Struct, kw_only=True):
    """The scores of all pairs, in their order."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: RankUsage


async def rerank(setting: str, service: Service, call: Call) -> None:
    """Answer documents by their relevance. setting: ``dialects.rank``."""

    def read(body: bytes, context: Context) -> Work:
        given = decode(body, RerankRequest, context.ignored)
        texts = _documents(given.documents)
        if given.top_n is not None and given.top_n < 1:
            raise invalid("top_n", f"top_n: {given.top_n} is not an integer from 1 on")
        work = _work([(given.query, text) for text in texts], given, setting, service, call, context)
        return lambda streams: _ranked(work(streams), texts, given, context)

    await answer_with_streams(service, call, read)


async def score(setting: str, service: Service, call: Call) -> None:
    """Answer the score of each pair. setting: ``dialects.rank``."""

    def read(body: bytes, context: Context) -> Work:
        given = decode(body, ScoreRequest, context.ignored)
        work = _work(_pairs(given), given, setting, service, call, context)
        return lambda streams: _scored(work(streams), given, context)

    await answer_with_streams(service, call, read)


def _work(pairs: Sequence[Pair], given: Ranking, setting: str, service: Service, call: Call, context: Context) -> Any:
    """Return what computes the scores; raises ApiError."""
    kind = kind_of(setting, service.model, given.model or context.model)
    return partial(scoring(pairs, given, kind, service, call, context).scored, service.model.engine)


def _documents(given: Sequence[Any]) -> list[str]:
    if not given:
        raise invalid("documents", "documents: there is none")
    check_length(given, MOST_REQUESTS, "documents")
    found = []
    for index, one in enumerate(given):
        text = one.get("text") if isinstance(one, dict) else one
        if not isinstance(text, str):
            raise invalid(f"documents[{index}]", f"documents[{index}]: it is no text and has none", "invalid_type")
        found.append(text)
    return found


def _pairs(given: ScoreRequest) -> list[Pair]:
    first = _several(given.text_1, given.queries, "text_1")
    second = _several(given.text_2, given.documents, "text_2")
    if len(first) not in (1, len(second)):
        raise invalid("text_1", f"text_1: there are {len(first)}, and {len(second)} of text_2: give one, or as many")
    check_length(second, MOST_REQUESTS, "text_2")
    return list(zip(first * (len(second) if len(first) == 1 else 1), second, strict=True))


def _several(value: str | list[str] | None, other: str | list[str] | None, name: str) -> list[str]:
    if value is not None and other is not None:
        raise invalid(name, f"{name}: it is given by two names")
    found = other if value is None else value
    if not found:
        raise invalid(name, f"missing parameter {name}", "missing_required_parameter")
    return [found] if isinstance(found, str) else found


def _ranked(scores: Scores, texts: Sequence[str], given: RerankRequest, context: Context) -> bytes:
    order = sorted(range(len(texts)), key=lambda index: (-scores.values[index], index))[: given.top_n]
    shows = given.return_documents is not False
    results = [
        Ranked(
            index=index,
            document=RankedDocument(text=texts[index]) if shows else None,
            relevance_score=scores.values[index],
        )
        for index in order
    ]
    found = RerankResponse(
        id=f"rerank-{context.id}", model=given.model or context.model, usage=_usage(scores), results=results
    )
    return msgspec.json.encode(found)


def _scored(scores: Scores, given: ScoreRequest, context: Context) -> bytes:
    data = [Score(index=index, score=value) for index, value in enumerate(scores.values)]
    name = given.model or context.model
    found = ScoreResponse(
        id=f"score-{context.id}", created=context.created, model=name, data=data, usage=_usage(scores)
    )
    return msgspec.json.encode(found)


def _usage(scores: Scores) -> RankUsage:
    return RankUsage(prompt_tokens=scores.tokens, total_tokens=scores.tokens)
