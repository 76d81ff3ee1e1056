"""Grammars of calls, in the Lark dialect of llguidance."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from infeng_chat.answers.calls import Tag, Tool, parameters

_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Whitespace options: the spacing that models were trained on, and no long runs of blanks that waste tokens."""


def quoted(text: str) -> str:
    """Return a text in a grammar's notation."""
    return json.dumps(text, ensure_ascii=False)


def schema(of: Mapping[str, Any]) -> str:
    """Return a JSON value by a schema in a grammar's notation."""
    return f"%json {json.dumps({'x-guidance': _STYLE, **of}, ensure_ascii=False)}"


def calls(tools: Mapping[str, Tool], one: Callable[[str, str], str], *, several: str | None) -> str:
    """Return the rules for a call of one of ``tools``, or for several calls with ``several`` between them.

    one: returns the expression of a call from a function's name and the rule of its arguments.
    """
    lines = [f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}"]
    for index, (name, tool) in enumerate(tools.items()):
        lines += [f"call_{index}: {one(name, f'arguments_{index}')}", f"arguments_{index}: {schema(parameters(tool))}"]
    repeat = "call" if several is None else f"call ({several} call)*" if several else "call+"
    return "\n".join([f"calls: {repeat}", *lines, ""])


def named_object(name: str, arguments: str, key: str = "arguments", name_key: str = "name") -> str:
    """Return the expression of ``{"name": ..., "arguments": {...}}``."""
    begin = f'{{"{name_key}": {json.dumps(name, ensure_ascii=False)}, "{key}": '
    return f'{quoted(begin)} {arguments} "}}"'


def start(*parts: str) -> str:
    """Return the first rule of a grammar."""
    return f"start: {' '.join(part for part in parts if part)}\n"


def between(tag: Tag, begin: str, expression: str, end: str) -> str:
    """Return an expression between two tags."""
    return " ".join(part for part in (tag(begin), expression, tag(end) if end else "") if part)
