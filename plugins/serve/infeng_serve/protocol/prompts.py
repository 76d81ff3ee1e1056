"""Values of ``prompt`` or ``input``: a text, texts, token ids, or lists of token ids."""

from __future__ import annotations

from typing import Any

from infeng_core.api import Tokenizer
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.bounds import SURE_PER_TOKEN, check_text, check_tokens, encoded
from infeng_serve.protocol.errors import invalid
from infeng_serve.protocol.token_bytes import token_bytes

_FORMS = "a text, a list of texts, token ids, or a list of lists of them"

_ID = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_IDS = {"type": "array", "items": _ID, "minItems": 1}
PROMPT_SCHEMA = {
    "allOf": [  # msgspec generates an anyOf of the field's types, which would overwrite one here
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
                _IDS,
                {"type": "array", "items": _IDS, "minItems": 1},
            ]
        }
    ]
}


def number(given: str | list[Any]) -> int:
    """Return the number of prompts of a valid value."""
    is_one = isinstance(given, str) or (bool(given) and _is_id(given[0]))
    return 1 if is_one else len(given)


def ids_of(
    given: str | list[Any], context: Context, name: str, *, is_whole: bool = True
) -> tuple[list[list[int]], list[str | None]]:
    """Return the token ids of each prompt, and its text, None for a prompt of ids. name: the field, for messages.

    is_whole: whether the beginning-of-text token is put before a text, as the model expects. The caller bounds the
    ``number`` of prompts before. Raises ApiError, and OverloadedError if the first prompt cannot be admitted.
    """
    if isinstance(given, str):
        return _encoded([given], context, name, is_whole), [given]
    if not given:
        raise invalid(name, f"{name}: it is empty")
    if _is_id(given[0]):
        return [_checked(given, context, name)], [None]
    if all(isinstance(one, str) for one in given):
        return _encoded(given, context, name, is_whole), list(given)
    if all(isinstance(one, list) for one in given):
        prompts = [_checked(one, context, f"{name}[{index}]") for index, one in enumerate(given)]
        return prompts, [None] * len(given)
    raise invalid(name, f"{name}: it is not {_FORMS}", "invalid_type")


def _is_id(one: Any) -> bool:
    return isinstance(one, int) and not isinstance(one, bool)


def bare(text: str, ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """Return the ids of a text without the beginning-of-text token, unless the text itself contains it."""
    first = tokenizer.bos_id
    if first is None or ids[:1] != [first]:
        return ids
    rest = text.removeprefix(token_bytes(tokenizer, first).decode(errors="replace"))
    is_written = rest != text and tokenizer.encode([rest])[0] == ids  # the tokenizer puts it before the rest, too
    return ids if is_written else ids[1:]


def _encoded(texts: list[str], context: Context, name: str, is_whole: bool) -> list[list[int]]:
    for text in texts:
        check_text(text, context, name)
    context.check_room(len(texts[0]) // SURE_PER_TOKEN)
    for text in texts:
        check_tokens([text], context, name)
    found = encoded(texts, context, name)
    if not is_whole:
        found = [bare(text, ids, context.tokenizer) for text, ids in zip(texts, found, strict=True)]
    if not all(found):
        raise invalid(name, f"{name}: it is empty, and the model has no beginning-of-text token")
    return found


def _checked(given: list[Any], context: Context, path: str) -> list[int]:
    if len(given) >= context.context:
        why = f"{path}: it is {len(given)} tokens, and the context {context.context}: shorten it"
        raise invalid(path, why, "context_length_exceeded")
    context.check()
    for index, one in enumerate(given):
        if not _is_id(one) or not 0 <= one < 2**31:
            raise invalid(f"{path}[{index}]", f"{path}[{index}]: it is not a token id", "invalid_type")
    if not given:
        raise invalid(path, f"{path}: it is empty")
    return given
