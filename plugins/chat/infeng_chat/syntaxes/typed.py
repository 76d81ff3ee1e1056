"""Conversion of arguments that models write as text between tags, by the function's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from infeng_chat.answers.calls import Tool, parameters

_WORDS = {"True": True, "False": False, "None": None}


def properties(tool: Tool | None) -> Mapping[str, Any]:
    """Return the schemas of a function's arguments by name."""
    found = parameters(tool).get("properties") if tool is not None else None
    return found if isinstance(found, Mapping) else {}


def is_text(schema: Any) -> bool:
    """Return whether a schema admits strings, so that any text is a valid value."""
    if not isinstance(schema, Mapping):
        return False
    kinds = schema.get("type")
    if kinds is None and any(isinstance(schema.get(key), list) for key in ("anyOf", "oneOf")):
        return any(is_text(one) for key in ("anyOf", "oneOf") for one in schema.get(key) or ())
    if kinds is None and isinstance(schema.get("enum"), list):
        return any(isinstance(one, str) for one in schema["enum"])
    return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)


def value(text: str, schema: Any) -> Any:
    """Convert an argument: to a string if the schema admits one, else by parsing JSON, or to the text if that fails."""
    if is_text(schema):
        return text
    word = text.strip()
    if word in _WORDS:
        return _WORDS[word]
    try:
        return json.loads(word, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def member(name: str, text: str, schema: Any) -> str:
    """Return an argument as a member of a JSON object."""
    return f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(value(text, schema), ensure_ascii=False)}"


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
