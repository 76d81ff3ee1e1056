"""What the readers of calls have in common."""

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
    """Return the functions among tools of OpenAI's form, by their names."""
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
    """One place in an answer where calls are expected."""

    def __init__(self, cursor: Cursor, sink: Sink, tools: Mapping[str, Tool]) -> None:
        """Read at ``cursor``, give to ``sink``; ``tools`` are those that the request names."""
        self.cursor = cursor
        self.tools = tools
        self.is_open = False
        """Whether a call has begun and not ended: what was read of it cannot be taken back."""
        self.any = False
        """Whether a call has begun."""
        self._sink = sink

    def open(self, name: str) -> None:
        """Begin a call; raises MalformedError where it has no name."""
        if not name.strip():
            raise MalformedError
        self.is_open = self.any = True
        self._sink.open(name.strip())

    def arguments(self, text: str) -> None:
        """Give more of the arguments, as JSON."""
        self._sink.arguments(text)

    def close(self) -> None:
        """End the call: what follows is judged for itself."""
        self.is_open = False
        self.cursor.mark()

    def whole(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Give a call that is complete."""
        self.open(name)
        self.arguments(json.dumps(arguments, ensure_ascii=False))
        self.close()


Read = Callable[[Calls, str], Steps[None]]
"""Reads one call, or a list of them, behind the tag that opens it; raises MalformedError for what is none."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a family of models writes calls."""

    name: str
    markers: tuple[tuple[str, ...], ...]
    """A template that contains all texts of one of these writes its calls so."""
    opens: tuple[str, ...]
    """Tags before calls; what comes before them is content."""
    read: Read
    bare: str = ""
    """Characters that begin a call where an answer begins with one of them, without a tag."""
    stops: tuple[str, ...] = ()
    """Special tokens that end a turn with calls."""
    grammar: Callable[[Mapping[str, Tool], Tag, bool], str] | None = None
    """Gives the Lark grammar of calls of these tools, several where the last argument is true."""


Tag = Callable[[str], str]
"""Gives a tag as a grammar spells it: a quoted text, or the number of a special token."""


def read_arguments(calls: Calls) -> Steps[None]:
    """Take the arguments of an open call: an object, the same in a string, or null."""
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
    """What is known of a call while its object is read."""

    name: str = ""
    early: dict[str, Any] | None = field(default=None)  # arguments that came before the name


def read_object(calls: Calls, known: bool = False) -> Steps[None]:
    """Take ``{"name": ..., "arguments": {...}}``, with further keys in any order.

    known: only of functions that the request names; anything else is none.
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
    """Take a list of calls, or a single one."""
    first = yield from calls.cursor.blank()
    if first != "[":
        yield from one(calls)
        return
    calls.cursor.at += 1
    while (yield from jsonstream.members(calls.cursor)):
        yield from one(calls)
    calls.cursor.mark()
