"""Conversion of a request's parameters to SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from infeng_chat.template import ChatPrompt
from infeng_processors.api import bad_words

from infeng_core.api import InfengError, RequestError, SamplingParams, Tokenizer, printable
from infeng_core.api.servers import SAMPLING
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.errors import invalid, not_supported, of
from infeng_serve.protocol.parameters import MOST_LIKELY, Choices, Common

SEEDS = 2**64

MOST_PROCESSORS = 8
"""Most logit processors that a request may name: each costs time in every step."""

_KNOWN = frozenset(field.name for field in fields(SamplingParams))

DIRECT = (
    *(name for name in SAMPLING if name in _KNOWN and name != "max_tokens"),
    "prompt_logprobs",
    "skip_special_tokens",
)
"""Parameters with the same name in SamplingParams."""


def sampling(
    given: Common, context: Context, *, otherwise: int, prompt: ChatPrompt | None = None, **more: Any
) -> SamplingParams:
    """Return the sampling parameters of a request, with ``context.defaults`` for those that it does not give.

    otherwise: ``max_tokens`` if neither gives it. prompt: that of a conversation, with the tokens that end a turn.
    more: parameters that the route sets itself. Raises ApiError.
    """
    for name in ("mirostat", "mirostat_mode"):
        if getattr(given, name, None):
            raise not_supported(name, "there is no mirostat here: use min_p or top_n_sigma (0 is off)")
    values: dict[str, Any] = {"max_tokens": otherwise}
    values.update((name, value) for name, value in context.defaults.items() if name in _KNOWN and value is not None)
    for name in DIRECT:
        value = getattr(given, name, None)
        if value is not None:
            if name not in _KNOWN:
                raise not_supported(name, "this version of the engine does not know it")
            values[name] = tuple(value) if isinstance(value, list) else value
    if values.get("top_k") == -1:
        values["top_k"] = 0
    if values.get("seed") is not None:
        values["seed"] = _seed(values["seed"])
    if given.bad_words:
        values["bad_words_ids"] = _bad_words(given.bad_words, context.tokenizer)
    if prompt is not None:
        values["stop_token_ids"] = (*values.get("stop_token_ids", ()), *prompt.stop_token_ids)
        values["stop"] = (*_texts(values.get("stop", ())), *getattr(prompt, "stop", ()))
    values.update((name, value) for name, value in more.items() if name in _KNOWN)
    values["processors"] = (*values.get("processors", ()), *_named(given, context))
    try:
        return SamplingParams(**values)
    except RequestError as error:
        raise of(error) from None


def named_paths(given: Common) -> dict[str, str]:
    """Return the paths of the logit processors in a request, by name."""
    return {name: f"logit_processors.{name}" for name in given.logit_processors or {}}


def longest(given: Choices) -> int | None:
    """Return ``max_tokens`` of a request, by either of its names."""
    if None not in (given.max_tokens, given.max_completion_tokens) and given.max_tokens != given.max_completion_tokens:
        raise invalid("max_completion_tokens", "max_completion_tokens and max_tokens differ: give one of them")
    return given.max_completion_tokens if given.max_tokens is None else given.max_tokens


def choices(given: Choices, context: Context) -> int:
    """Return ``n``; raises ApiError if it is out of range."""
    n = 1 if given.n is None else given.n
    if not 1 <= n <= context.most_choices:
        raise invalid("n", f"n: {n} is not from 1 to {context.most_choices}")
    return n


def _named(given: Common, context: Context) -> list[tuple[str, Any]]:
    """Return the logit processors of a request with their arguments; raises ApiError for one that is not offered."""
    found = given.logit_processors or {}
    if len(found) > MOST_PROCESSORS:
        raise invalid("logit_processors", f"logit_processors: there are {len(found)}: name at most {MOST_PROCESSORS}")
    for name in found:
        if name not in context.logit_processors:
            offered = ", ".join(context.logit_processors) or "none"
            path = f"logit_processors.{printable(name, 64)}"
            raise invalid(path, f"{path}: this server does not offer it; it offers {offered}")
    return [*found.items()]


def check_likely(top_logprobs: int | None) -> None:
    """Raise ApiError for a number of likely tokens that is out of range."""
    if top_logprobs is not None and not 0 <= top_logprobs <= MOST_LIKELY:
        given = printable(str(top_logprobs), 32)
        raise invalid("top_logprobs", f"top_logprobs: {given} is not an integer from 0 to {MOST_LIKELY}")


def note_unused(given: Choices, context: Context) -> None:
    """Note parameters that have no effect together with the request's other parameters."""
    if given.stream_options is not None and not given.stream:
        context.ignored.note("stream_options")


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    try:
        return bad_words(words, tokenizer)
    except InfengError as error:
        raise of(error, "bad_words") from None


def _texts(given: str | Sequence[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else given


def _seed(seed: int) -> int:
    if not -(2**63) <= seed < SEEDS:
        raise invalid("seed", f"seed: {seed} is not an integer of 64 bits")
    return seed % SEEDS


def variables(given: Mapping[str, Any] | None, **more: Any) -> dict[str, Any]:
    """Return a chat template's variables besides messages and tools; those that are None are left out."""
    return {**(given or {}), **{name: value for name, value in more.items() if value is not None}}
