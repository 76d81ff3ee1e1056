"""How long what a request gives may be: looked at once, before anything is done with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from infeng_core.api import InfengError
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.errors import ApiError, invalid, of

MOST_MESSAGES = 4096
"""Turns of a conversation, and items of an ``input``."""

MOST_TOOLS = 1024

MOST_ADAPTERS = 64
"""That one request combines."""

MOST_BIASES = 16384
"""Tokens in a ``logit_bias``, and in ``stop_token_ids``."""

MOST_ALLOWED = 1 << 18
"""Tokens in ``allowed_token_ids``: any vocabulary."""

MOST_NAMED = 1 << 20
"""Tokens that parameters name, times the requests of the call: each request looks at them for itself."""

MOST_ITEMS = 16384
"""Of any other list or object ..."""

MOST_CHARACTERS = 1 << 16
"""... and of any other text; of a schema or grammar four times as many, and of prompts what the context allows."""

CHARACTERS_PER_TOKEN = 32
"""A longer text for each token of the context is no text; it is refused before it takes seconds to tokenize."""

SURE_PER_TOKEN = 8
"""A longer one has more tokens than the context in all likelihood: it is counted in pieces first."""

PIECE = 1 << 16
"""Characters that are tokenized at a time, some 50 ms."""

_MOST: Mapping[str, int | None] = {
    "prompt": None,  # these four by the context
    "input": None,
    "instructions": None,
    "tokens": None,
    "messages": MOST_MESSAGES,
    "tools": MOST_TOOLS,
    "adapters": MOST_ADAPTERS,
    "logit_bias": MOST_BIASES,
    "stop_token_ids": MOST_BIASES,
    "allowed_token_ids": MOST_ALLOWED,
    **dict.fromkeys(
        ("guided_json", "guided_regex", "guided_grammar", "json_schema", "response_schema", "grammar", "json", "regex"),
        4 * MOST_CHARACTERS,
    ),
}


def check(given: msgspec.Struct, path: str = "") -> None:
    """Raise ApiError 400 for the first field that is too long, by its path."""
    for name in given.__struct_fields__:
        value = getattr(given, name)
        place = f"{path}{name}"
        if isinstance(value, msgspec.Struct):
            check(value, f"{place}.")
        elif isinstance(value, str | list | dict):
            most = _MOST.get(name, MOST_CHARACTERS if isinstance(value, str) else MOST_ITEMS)
            if most is not None:
                check_length(value, most, place)


def check_length(value: Collection[Any], most: int, path: str) -> None:
    """Raise ApiError 400 for more than ``most`` items or characters."""
    if len(value) > most:
        what = "characters" if isinstance(value, str) else "entries"
        raise invalid(path, f"{path}: it has {len(value)} {what}, and at most {most} are taken")


def check_named(names: int, requests: int) -> None:
    """Raise ApiError 400 where so many ``requests`` name so many tokens each that reading them takes seconds."""
    if names * requests > MOST_NAMED:
        why = f"{names} tokens in stop_token_ids, allowed_token_ids, bad_words and logit_bias"
        remedy = "make several calls, or name fewer"
        raise invalid("n", f"{why}, for each of {requests} requests, are more than {MOST_NAMED}: {remedy}")


def check_conversation(size: int, messages: Any, others: Any, context: Context, param: str) -> None:
    """Raise ApiError 400 for a conversation that cannot fit, before it is rendered.

    size: of the body in bytes; not many are no reason to look. others: tools and variables of the template.
    """
    most = CHARACTERS_PER_TOKEN * context.context
    if size > most and (length := characters(messages) + characters(others)) > most:
        raise _too_long(param, f"they have {length} characters", context)
    if size > SURE_PER_TOKEN * context.context:
        check_tokens(_contents(messages), context, param)


def check_text(text: str, context: Context, param: str) -> None:
    """Raise ApiError 400 for a text that cannot fit, before it is tokenized."""
    if len(text) > CHARACTERS_PER_TOKEN * context.context:
        raise _too_long(param, f"it has {len(text)} characters", context)


def check_tokens(texts: Iterable[str], context: Context, param: str) -> None:
    """Raise ApiError 400 for texts that are longer than prose and have more tokens than the context has room for.

    They are counted in pieces; a cut makes two tokens more at most. Others cost nothing here.
    """
    several = list(texts)
    if sum(map(len, several)) <= SURE_PER_TOKEN * context.context:
        return
    tokens = 0
    for piece in (text[at : at + PIECE] for text in several for at in range(0, len(text), PIECE)):
        context.check()
        [ids] = encoded([piece], context, param)
        tokens += max(0, len(ids) - 4)  # those of the cut, and what goes before and behind every text
        if tokens >= context.context:
            raise _too_long(param, f"more than {tokens} tokens", context)


def encoded(texts: list[str], context: Context, param: str, **how: Any) -> list[list[int]]:
    """Return the ids of each text, some at a time: who has left is not waited for. Raises ApiError, names ``param``."""
    found: list[list[int]] = []
    for several in _batches(texts):
        context.check()
        try:
            found += context.tokenizer.encode(several, **how)
        except InfengError as error:
            raise of(error, param) from None
    return found


def characters(value: Any) -> int:
    """Return how many characters are in the texts of JSON data; keys count, and any other value as one."""
    found, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            found += len(one)
        elif isinstance(one, list | tuple):
            left.extend(one)
        elif isinstance(one, Mapping):
            left.extend(one)
            left.extend(one.values())
        else:
            found += 1
    return found


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """Yield texts in their order, ``PIECE`` characters or one longer text at a time."""
    several: list[str] = []
    length = 0
    for text in texts:
        if several and length + len(text) > PIECE:
            yield several
            several, length = [], 0
        several.append(text)
        length += len(text)
    if several:
        yield several


def _contents(messages: Iterable[Any]) -> Iterator[str]:
    return (one["content"] for one in messages if isinstance(one, Mapping) and isinstance(one.get("content"), str))


def _too_long(param: str, what: str, context: Context) -> ApiError:
    why = f"{param}: {what}, and the context is {context.context} tokens: shorten it"
    return invalid(param, why, "context_length_exceeded")
