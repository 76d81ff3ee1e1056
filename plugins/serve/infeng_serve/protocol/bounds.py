"""Bounds on the sizes of a request's parameters, checked before any other work."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from infeng_core.api import InfengError
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.errors import ApiError, invalid, of

MOST_MESSAGES = 4096
"""Most turns of a conversation, and items of an ``input``."""

MOST_TOOLS = 1024

MOST_ADAPTERS = 64
"""Most adapters that one request combines."""

MOST_BIASES = 16384
"""Most tokens in ``logit_bias``, and in ``stop_token_ids``."""

MOST_ALLOWED = 1 << 18
"""Most tokens in ``allowed_token_ids``: enough for any vocabulary."""

MOST_NAMED = 1 << 20
"""Most tokens that parameters name, times the requests of the call, since each request reads them."""

MOST_ITEMS = 16384
"""Most items of any other list or object."""

MOST_CHARACTERS = 1 << 16
"""Most characters of any other text; four times as many in a schema or grammar. The context bounds prompts."""

CHARACTERS_PER_TOKEN = 32
"""Most characters of a prompt per token of the context; a longer one cannot fit, and tokenizing it takes seconds."""

SURE_PER_TOKEN = 8
"""Characters per token of the context from which on a prompt is counted in pieces first: it hardly fits."""

PIECE = 1 << 16
"""Characters that are tokenized at a time, in some 50 ms."""

_MOST: Mapping[str, int | None] = {
    **dict.fromkeys(  # by the context
        (
            "prompt",
            "input",
            "instructions",
            "tokens",
            "system",
            "content",
            "query",
            "suffix",
            "input_prefix",
            "input_suffix",
            "text_1",
            "text_2",
        )
    ),
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
    """Raise ApiError 400, which names the path, for the first field that is too long."""
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
    """Raise ApiError 400 if ``names`` tokens for each of ``requests`` requests would take seconds to read."""
    if names * requests > MOST_NAMED:
        why = f"{names} tokens in stop_token_ids, allowed_token_ids, bad_words and logit_bias"
        remedy = "make several calls, or name fewer"
        raise invalid("n", f"{why}, for each of {requests} requests, are more than {MOST_NAMED}: {remedy}")


def check_conversation(size: int, messages: Any, others: Any, context: Context, param: str) -> None:
    """Raise ApiError 400 for a conversation that cannot fit, before it is rendered.

    size: bytes of the body; a small body is not examined. others: tools and variables of the template.
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
    """Raise ApiError 400 for texts that are longer than prose would be and have more tokens than the context.

    Such texts are tokenized in pieces; a cut adds at most two tokens. Shorter texts are not examined.
    """
    several = list(texts)
    if sum(map(len, several)) <= SURE_PER_TOKEN * context.context:
        return
    tokens = 0
    for piece in (text[at : at + PIECE] for text in several for at in range(0, len(text), PIECE)):
        context.check()
        [ids] = encoded([piece], context, param)
        tokens += max(0, len(ids) - 4)  # tokens that the cut adds, and special tokens around every text
        if tokens >= context.context:
            raise _too_long(param, f"more than {tokens} tokens", context)


def encoded(texts: list[str], context: Context, param: str, **how: Any) -> list[list[int]]:
    """Tokenize texts in batches, checking in between whether the client has left. Raises ApiError for ``param``."""
    found: list[list[int]] = []
    for several in _batches(texts):
        context.check()
        try:
            found += context.tokenizer.encode(several, **how)
        except InfengError as error:
            raise of(error, param) from None
    return found


def characters(value: Any) -> int:
    """Return the number of characters of all texts and keys in JSON data; any other value counts as one."""
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
    """Yield texts in order, up to ``PIECE`` characters or one longer text at a time."""
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
