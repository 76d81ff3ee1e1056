"""An answer of a model that writes content, reasoning between tags and calls behind tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from infeng_chat.answers.calls import Calls, Syntax, Tool
from infeng_chat.answers.cursor import Cursor, MalformedError, Steps
from infeng_chat.answers.reasoning import Reasoning
from infeng_chat.answers.sink import NewId, Sink
from infeng_chat.contract import Delta

Reader = Callable[[Cursor, Sink], Steps[None]]
"""Reads a whole answer."""


class Parser:
    """An ``OutputParser`` around a reader."""

    def __init__(self, reader: Reader, new_id: NewId, reads_special_tokens: bool = True) -> None:
        """Begin an answer."""
        self.reads_special_tokens = reads_special_tokens
        self._cursor = Cursor()
        self._sink = Sink(new_id)
        self._steps: Steps[None] | None = reader(self._cursor, self._sink)

    def begin(self, text: str) -> None:
        """Take what the prompt holds of the answer, which is not to be given."""
        if text:
            self.push(text)
            self._sink.tag()

    def push(self, text: str) -> list[Delta]:
        """Take more text; return what became certain, in order."""
        self._cursor.feed(text)
        return self._run()

    def finish(self) -> list[Delta]:
        """Return what was held back; no text follows."""
        self._cursor.ended = True
        found = self._run()
        self._sink.end()
        return found + self._sink.take()

    def _run(self) -> list[Delta]:
        if self._steps is not None:
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None
        return self._sink.take()


class Plain:
    """An ``OutputParser`` where all is content."""

    reads_special_tokens = False

    def push(self, text: str) -> list[Delta]:
        """Take more text; return it."""
        return [Delta(content=text)] if text else []

    def finish(self) -> list[Delta]:
        """Return nothing: no text is held back."""
        return []


def answer(reasoning: Reasoning | None, inside: bool, syntax: Syntax | None, tools: Mapping[str, Tool]) -> Reader:
    """Return a reader.

    inside: whether the answer begins within reasoning. syntax: None where calls stay text.
    """

    def read(cursor: Cursor, sink: Sink) -> Steps[None]:
        if inside and reasoning is not None:
            yield from _think(cursor, sink, reasoning)
        if syntax is not None and syntax.bare:
            yield from _bare(cursor, sink, syntax, tools)
        tags = (*((reasoning.open,) if reasoning else ()), *(syntax.opens if syntax else ()))
        while (tag := (yield from cursor.stream(tags, sink.content))) is not None:
            if syntax is not None and tag in syntax.opens:
                yield from _calls(cursor, sink, syntax, tools, tag)
            elif sink.has_content:
                sink.content(tag)  # the answer speaks of it
            elif reasoning is not None:
                yield from _think(cursor, sink, reasoning)

    return read


def _think(cursor: Cursor, sink: Sink, reasoning: Reasoning) -> Steps[None]:
    sink.tag()
    yield from cursor.literal(reasoning.open)  # some models write again what the prompt has written
    yield from cursor.stream((reasoning.close,), sink.think)
    sink.tag()


def _bare(cursor: Cursor, sink: Sink, syntax: Syntax, tools: Mapping[str, Tool]) -> Steps[None]:
    """Read calls that no tag opens, where the answer may begin with them."""
    cursor.mark()
    first = yield from cursor.blank()
    is_call = bool(first) and first in syntax.bare
    cursor.rewind()
    if is_call:
        yield from _calls(cursor, sink, syntax, tools, "")
    cursor.release()


def _calls(cursor: Cursor, sink: Sink, syntax: Syntax, tools: Mapping[str, Tool], tag: str) -> Steps[None]:
    """Read what ``tag`` opens; what turns out to be no call is content, from the last one that was."""
    calls = Calls(cursor, sink, tools)
    cursor.mark()
    try:
        yield from syntax.read(calls, tag)
    except MalformedError:
        if not calls.is_open:
            cursor.rewind()
            if not calls.any:
                sink.content(tag)
    cursor.release()
    if calls.any:
        sink.tag()
