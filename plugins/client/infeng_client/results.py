"""Responses of servers as frozen dataclasses, each with its original JSON in ``raw``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infeng_client.errors import ServerError

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a call."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the server's cache."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with the log-probabilities at its position, before sampling filters."""

    token: str
    logprob: float | None
    """Log-probability of the token; None for the first of a prompt."""
    top: tuple[tuple[str, float], ...] = ()
    """The most likely tokens, as many as were requested."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants to call; in a chunk, a piece of the call."""

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
    """"stop", "length" or "tool_calls"; None for an unfinished choice."""
    logprobs: tuple[TokenLogprob, ...] | None
    tool_calls: tuple[ToolCall, ...]
    reasoning: str
    """The model's reasoning before the answer."""


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
        """The first choice's finish reason."""
        return self.choices[0].finish_reason if self.choices else None

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """The first choice's log-probabilities, None if they were not requested."""
        return self.choices[0].logprobs if self.choices else None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The first choice's tool calls."""
        return self.choices[0].tool_calls if self.choices else ()

    @property
    def reasoning(self) -> str:
        """The first choice's reasoning."""
        return self.choices[0].reasoning if self.choices else ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one choice, or the usage of all choices."""

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
        """Whether the chunk has more than a role."""
        return any((self.text, self.finish_reason, self.logprobs, self.tool_calls, self.reasoning, self.usage))


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the server offers: the base, or an adapter on it."""

    id: str
    """The value for ``model`` in a call."""
    root: str | None
    """The model's source."""
    parent: str | None
    """An adapter's base model; None for a base model."""
    raw: Json = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Embeddings:
    """A vector for each text, in order."""

    vectors: tuple[tuple[float, ...], ...]
    usage: Usage | None
    raw: Json = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a server can answer."""

    ok: bool
    status: str
    """"ok", or the reason why not, such as "Loading model"."""
    raw: Json = field(repr=False, compare=False)


def read_completion(raw: Json) -> Completion:
    """Parse an answer that was not streamed."""
    choices = tuple(_choice(place, choice, choice.get("message")) for place, choice in enumerate(_choices(raw)))
    return Completion(str(raw.get("id", "")), str(raw.get("model", "")), choices, read_usage(raw.get("usage")), raw)


def read_chunks(raw: Json) -> Iterator[Chunk]:
    """Yield the chunks of one event: one for each choice, and one for the usage if there is any."""
    for place, choice in enumerate(_choices(raw)):
        part = _choice(place, choice, choice.get("delta"))
        fields = (part.finish_reason, part.logprobs, part.tool_calls, part.reasoning)
        yield Chunk(part.index, part.text, *fields, None, raw)
    usage = read_usage(raw.get("usage"))
    if usage is not None:
        yield Chunk(0, "", None, None, (), "", usage, raw)


def read_usage(raw: Any) -> Usage | None:
    """Parse the usage; None if there is none."""
    if not isinstance(raw, Mapping):
        return None
    prompt, completion, total = (int(raw.get(f"{name}_tokens") or 0) for name in ("prompt", "completion", "total"))
    cached = int((raw.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    return Usage(prompt, completion, total, cached)


def read_models(raw: Json) -> list[Model]:
    """Parse the list of models."""
    return [Model(str(each["id"]), each.get("root"), each.get("parent"), each) for each in _list(raw, "data")]


def read_embeddings(raw: Json) -> Embeddings:
    """Parse vectors, in the order of their texts."""
    data = sorted(_list(raw, "data"), key=lambda each: int(each["index"]))
    return Embeddings(tuple(tuple(map(float, each["embedding"])) for each in data), read_usage(raw.get("usage")), raw)


def read_tokens(raw: Json) -> list[int]:
    """Parse the ids of a text."""
    return [int(token) for token in _list(raw, "tokens")]


def read_text(raw: Json) -> str:
    """Parse the text of ids, under vLLM's or llama.cpp's name."""
    return str(raw["prompt"] if "prompt" in raw else raw["content"])


def _choices(raw: Json) -> Sequence[Json]:
    return _list(raw, "choices")


def _list(raw: Json, name: str) -> Sequence[Any]:
    values = raw.get(name)
    if not isinstance(values, list):
        raise ServerError(None, f"the server's answer has no list {name!r}")
    return values


def _choice(place: int, raw: Json, message: Json | None) -> Choice:
    """Parse a choice. message: a chat's message or delta; None for a completion."""
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
    """Parse the log-probabilities of a chat (a list of tokens) or of a completion (a list for each field)."""
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
