"""Common parts of the readers of tool calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infeng_chat.answers import jsonstream
from infeng_chat.answers.cursor import Cursor, MalformedError, Steps
from infeng_chat.answers.sink import Sink

Tool = Mapping[str, Any]
"""The ``function`` of a tool: name, description, parameters."""


def functions(tools: Sequence[Mapping[str, Any]]) -> dict[str, Tool]:
    """Return the functions among tools in OpenAI's form, by name."""
    found = {}
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            found[function["name"]] = function
    return found


def parameters(tool: Tool) -> Mapping[str, Any]:
    """Return the schema of a function's arguments."""
    found = tool.get("parameters")
    return found if isinstance(found, Mapping) else {"type": "object", "properties": {}}


class Calls:
    """Reads one run of calls in an answer."""

    def __init__(self, cursor: Cursor, sink: Sink, tools: Mapping[str, Tool]) -> None:
        """Read at ``cursor`` and write to ``sink``. tools: the request's functions."""
        self.cursor = cursor
        self.tools = tools
        self.is_open = False
        """Whether a call has begun and not ended; its text can no longer become content."""
        self.any = False
        """Whether a call has begun."""
        self._sink = sink

    def open(self, name: str) -> None:
        """Begin a call; raises MalformedError if its name is empty."""
        if not name.strip():
            raise MalformedError
        self.is_open = self.any = True
        self._sink.open(name.strip())

    def arguments(self, text: str) -> None:
        """Pass on more of the arguments, as JSON."""
        self._sink.arguments(text)

    def close(self) -> None:
        """End the call; text after it is read anew."""
        self.is_open = False
        self.cursor.mark()

    def whole(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Pass on a complete call."""
        self.open(name)
        self.arguments(json.dumps(arguments, ensure_ascii=False))
        self.close()


Read = Callable[[Calls, str], Steps[None]]
"""Reads one call or a list of calls after its opening tag; raises MalformedError for any other text."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """The syntax in which a family of models writes calls."""

    name: str
    markers: tuple[tuple[str, ...], ...]
    """Groups of texts; a template that contains all texts of a group uses this syntax."""
    opens: tuple[str, ...]
    """Tags before calls; text before them is content."""
    read: Read
    bare: str = ""
    """First characters of an answer that begin a call without a tag."""
    stops: tuple[str, ...] = ()
    """Special tokens that end a turn with calls."""
    grammar: Callable[[Mapping[str, Tool], Tag, bool], str] | None = None
    """Returns the Lark grammar for calls of these tools; the last argument says whether to allow several."""


Tag = Callable[[str], str]
"""Returns a tag in a grammar's notation: a quoted text, or the number of a special token."""


def read_arguments(calls: Calls) -> Steps[None]:
    """Read the arguments of an open call: an object, an object as a string, or null."""
    cursor = calls.cursor
    first = yield from cursor.blank()
    if first == "{":
        yield from jsonstream.value(cursor, calls.arguments)
        return
    found = yield from jsonstream.parsed(cursor)
    if isinstance(found, str):
        try:
            found = json.loads(found or "{}")
        except (ValueError, RecursionError):
            raise MalformedError from None
    if not isinstance(found, dict | None):
        raise MalformedError
    calls.arguments(json.dumps(found or {}, ensure_ascii=False))


@dataclass(slots=True)
class _Object:
    """State of reading a call's object."""

    name: str = ""
    early: dict[str, Any] | None = field(default=None)  # arguments that came before the name


def read_object(calls: Calls, known: bool = False) -> Steps[None]:
    """Read ``{"name": ..., "arguments": {...}}``, with other keys in any order.

    known: whether to accept only functions of the request.
    """
    found = _Object()
    yield from _read_members(calls, found, known)
    if found.name and not calls.is_open:
        calls.open(found.name)
        calls.arguments(json.dumps(found.early or {}, ensure_ascii=False))
    if not calls.is_open:
        raise MalformedError
    calls.close()


def _read_members(calls: Calls, found: _Object, known: bool, nested: bool = False) -> Steps[None]:
    cursor = calls.cursor
    yield from cursor.expect("{")
    while (yield from jsonstream.members(cursor)):
        key = yield from jsonstream.text(cursor)
        yield from cursor.expect(":")
        first = yield from cursor.blank()
        if key in ("name", "function", "tool_name") and first in ('"', "'"):
            found.name = yield from jsonstream.text(cursor)
            if known and found.name not in calls.tools:
                raise MalformedError
        elif key == "function" and first == "{" and not nested:
            yield from _read_members(calls, found, known, nested=True)
        elif key in ("arguments", "parameters") and found.name and not calls.is_open:
            calls.open(found.name)
            yield from read_arguments(calls)
        elif key in ("arguments", "parameters"):
            early = yield from jsonstream.parsed(cursor)
            found.early = early if isinstance(early, dict) else None
        else:
            yield from jsonstream.parsed(cursor)


def read_list(calls: Calls, one: Callable[[Calls], Steps[None]]) -> Steps[None]:
    """Read a list of calls, or a single one."""
    first = yield from calls.cursor.blank()
    if first != "[":
        yield from one(calls)
        return
    calls.cursor.at += 1
    while (yield from jsonstream.members(calls.cursor)):
        yield from one(calls)
    calls.cursor.mark()
