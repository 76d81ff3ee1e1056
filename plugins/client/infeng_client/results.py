"""What servers answer, as small frozen dataclasses; each keeps the JSON that it was read from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infeng_client.errors import ServerError

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a call was charged with."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt's, those that were not computed anew."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token that was drawn, with the log-probabilities at its place, before every filter."""

    token: str
    logprob: float | None
    """Of the token; None for the first of a prompt."""
    top: tuple[tuple[str, float], ...] = ()
    """The likeliest tokens, as many as were asked for."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants to be called; of a chunk, the part of it that came."""

    index: int
    id: str
    name: str
    arguments: str
    """JSON text."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the ``n`` answers to a prompt."""

    index: int
    text: str
    finish_reason: str | None
    """"stop", "length", "tool_calls"; None of one that was broken off."""
    logprobs: tuple[TokenLogprob, ...] | None
    tool_calls: tuple[ToolCall, ...]
    reasoning: str
    """What a model thought before it answered."""


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer to a prompt or to messages, whole or gathered from a stream."""

    id: str
    model: str
    choices: tuple[Choice, ...]
    usage: Usage | None
    raw: Json = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text if self.choices else ""

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended."""
        return self.choices[0].finish_reason if self.choices else None

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """The first choice's, None if they were not asked for."""
        return self.choices[0].logprobs if self.choices else None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The first choice's."""
        return self.choices[0].tool_calls if self.choices else ()

    @property
    def reasoning(self) -> str:
        """The first choice's."""
        return self.choices[0].reasoning if self.choices else ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What came of one choice, or the usage of all, which belongs to none."""

    index: int
    text: str
    finish_reason: str | None
    logprobs: tuple[TokenLogprob, ...] | None
    tool_calls: tuple[ToolCall, ...]
    reasoning: str
    usage: Usage | None
    raw: Json = field(repr=False, compare=False)

    @property
    def says_something(self) -> bool:
        """Whether there is more in it than whose turn it is."""
        return any((self.text, self.finish_reason, self.logprobs, self.tool_calls, self.reasoning, self.usage))


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the server offers: the base, or an adapter on it."""

    id: str
    """What ``model`` of a call names it by."""
    root: str | None
    """Where it comes from."""
    parent: str | None
    """An adapter's base; None for a base."""
    raw: Json = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Embeddings:
    """A vector for each text, in their order."""

    vectors: tuple[tuple[float, ...], ...]
    usage: Usage | None
    raw: Json = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a server can answer."""

    ok: bool
    status: str
    """"ok", or what it waits for, such as "Loading model"."""
    raw: Json = field(repr=False, compare=False)


def read_completion(raw: Json) -> Completion:
    """Return an answer that was not streamed."""
    choices = tuple(_choice(place, choice, choice.get("message")) for place, choice in enumerate(_choices(raw)))
    return Completion(str(raw.get("id", "")), str(raw.get("model", "")), choices, read_usage(raw.get("usage")), raw)


def read_chunks(raw: Json) -> Iterator[Chunk]:
    """Yield what one event of a stream holds: a chunk for each choice, and one for the usage where there is any."""
    for place, choice in enumerate(_choices(raw)):
        part = _choice(place, choice, choice.get("delta"))
        fields = (part.finish_reason, part.logprobs, part.tool_calls, part.reasoning)
        yield Chunk(part.index, part.text, *fields, None, raw)
    usage = read_usage(raw.get("usage"))
    if usage is not None:
        yield Chunk(0, "", None, None, (), "", usage, raw)


def read_usage(raw: Any) -> Usage | None:
    """Return the usage, None where there is none."""
    if not isinstance(raw, Mapping):
        return None
    prompt, completion, total = (int(raw.get(f"{name}_tokens") or 0) for name in ("prompt", "completion", "total"))
    cached = int((raw.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    return Usage(prompt, completion, total, cached)


def read_models(raw: Json) -> list[Model]:
    """Return the models that are offered."""
    return [Model(str(each["id"]), each.get("root"), each.get("parent"), each) for each in _list(raw, "data")]


def read_embeddings(raw: Json) -> Embeddings:
    """Return the vectors in the order of their texts."""
    data = sorted(_list(raw, "data"), key=lambda each: int(each["index"]))
    return Embeddings(tuple(tuple(map(float, each["embedding"])) for each in data), read_usage(raw.get("usage")), raw)


def read_tokens(raw: Json) -> list[int]:
    """Return the ids of a text."""
    return [int(token) for token in _list(raw, "tokens")]


def read_text(raw: Json) -> str:
    """Return the text of ids, by vLLM's name of it or llama.cpp's."""
    return str(raw["prompt"] if "prompt" in raw else raw["content"])


def _choices(raw: Json) -> Sequence[Json]:
    return _list(raw, "choices")


def _list(raw: Json, name: str) -> Sequence[Any]:
    values = raw.get(name)
    if not isinstance(values, list):
        raise ServerError(None, f"the server's answer has no list {name!r}")
    return values


def _choice(place: int, raw: Json, message: Json | None) -> Choice:
    """Return a choice. message: of a chat, or its delta; None of a completion."""
    inner = raw if message is None else message
    return Choice(
        index=int(raw.get("index", place)),
        text=str((raw.get("text") if message is None else message.get("content")) or ""),
        finish_reason=raw.get("finish_reason"),
        logprobs=_logprobs(raw.get("logprobs")),
        tool_calls=tuple(_tool_call(place, call) for place, call in enumerate(inner.get("tool_calls") or ())),
        reasoning=str(inner.get("reasoning_content") or inner.get("reasoning") or ""),
    )


def _tool_call(place: int, raw: Json) -> ToolCall:
    function = raw.get("function") or {}
    words = (str(raw.get("id") or ""), str(function.get("name") or ""), str(function.get("arguments") or ""))
    return ToolCall(int(raw.get("index", place)), *words)


def _logprobs(raw: Any) -> tuple[TokenLogprob, ...] | None:
    """Return the log-probabilities of a chat (a list of tokens) or of a completion (a list of each field)."""
    if not isinstance(raw, Mapping):
        return None
    if "tokens" not in raw:
        return tuple(
            TokenLogprob(
                each["token"],
                each["logprob"],
                tuple((other["token"], other["logprob"]) for other in each.get("top_logprobs") or ()),
            )
            for each in raw.get("content") or ()
        )
    tokens = raw["tokens"]
    tops = raw.get("top_logprobs") or [None] * len(tokens)
    rows = zip(tokens, raw["token_logprobs"], tops, strict=True)
    return tuple(TokenLogprob(token, logprob, tuple((top or {}).items())) for token, logprob, top in rows)
