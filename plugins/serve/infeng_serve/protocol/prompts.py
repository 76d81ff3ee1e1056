"""What the field ``prompt``, or ``input``, may hold: a text, texts, token ids, or lists of them."""

from __future__ import annotations

from typing import Any

from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.errors import invalid
from infeng_serve.protocol.sampling import encode

CHARACTERS_PER_TOKEN = 32
"""A longer text for each token of the context is no text; it is refused before it takes seconds to tokenize."""

_ID = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_IDS = {"type": "array", "items": _ID, "minItems": 1}
PROMPT_SCHEMA = {
    "allOf": [  # an anyOf of its own would be lost: msgspec has one of the field's types
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


def ids_of(given: str | list[Any], context: Context, name: str) -> tuple[list[list[int]], list[str | None]]:
    """Return the ids of each prompt, and its text where that was given; ``name``: of the field, for messages."""
    if isinstance(given, str):
        return _encoded([given], context, name), [given]
    if not given:
        raise invalid(name, f"{name}: it is empty")
    if all(isinstance(one, str) for one in given):
        return _encoded(given, context, name), list(given)
    if all(isinstance(one, int) and not isinstance(one, bool) for one in given):
        return [_checked(given, name)], [None]
    if all(isinstance(one, list) for one in given):
        return [_checked(one, f"{name}[{index}]") for index, one in enumerate(given)], [None] * len(given)
    why = f"{name}: it is not a text, a list of texts, token ids, or a list of lists of them"
    raise invalid(name, why, "invalid_type")


def _encoded(texts: list[str], context: Context, name: str) -> list[list[int]]:
    for index, text in enumerate(texts):
        if len(text) > CHARACTERS_PER_TOKEN * context.context:
            why = f"{name}: text {index} has {len(text)} characters, and the context {context.context} tokens"
            raise invalid(name, why, "context_length_exceeded")
    found = encode(texts, context.tokenizer, name)
    if not all(found):
        raise invalid(name, f"{name}: it is empty, and the model has no beginning-of-text token")
    return found


def _checked(given: list[Any], path: str) -> list[int]:
    for index, one in enumerate(given):
        if not isinstance(one, int) or isinstance(one, bool) or not 0 <= one < 2**31:
            raise invalid(f"{path}[{index}]", f"{path}[{index}]: it is not a token id", "invalid_type")
    if not given:
        raise invalid(path, f"{path}: it is empty")
    return given
