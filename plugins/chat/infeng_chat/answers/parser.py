"""Parser for answers with reasoning between tags and calls after tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from infeng_chat.answers.calls import Calls, Syntax, Tool
from infeng_chat.answers.cursor import Cursor, MalformedError, Steps
from infeng_chat.answers.reasoning import Reasoning
from infeng_chat.answers.sink import NewId, Sink
from infeng_chat.contract import Delta

Reader = Callable[[Cursor, Sink], Steps[None]]
"""A reader of a whole answer."""


class Parser:
    """An ``OutputParser`` around a reader."""

    def __init__(self, reader: Reader, new_id: NewId, reads_special_tokens: bool = True) -> None:
        """Start an answer."""
        self.reads_special_tokens = reads_special_tokens
        self._cursor = Cursor()
        self._sink = Sink(new_id)
        self._steps: Steps[None] | None = reader(self._cursor, self._sink)

    def begin(self, text: str) -> None:
        """Parse the beginning of the answer that the prompt contains, without returning it."""
        if text:
            self.push(text)
            self._sink.tag()

    def push(self, text: str) -> list[Delta]:
        """Parse more text; return the deltas that became certain, in order."""
        self._cursor.feed(text)
        return self._run()

    def finish(self) -> list[Delta]:
        """Return the remaining deltas; the text is complete."""
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
    """An ``OutputParser`` that returns all text as content."""

    reads_special_tokens = False

    def push(self, text: str) -> list[Delta]:
        """Return the text as content."""
        return [Delta(content=text)] if text else []

    def finish(self) -> list[Delta]:
        """Return nothing: no text is held back."""
        return []


def answer(reasoning: Reasoning | None, inside: bool, syntax: Syntax | None, tools: Mapping[str, Tool]) -> Reader:
    """Return a reader.

    inside: whether the answer begins within reasoning. syntax: None to leave calls as text.
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
                sink.content(tag)  # the answer only mentions the tag
            elif reasoning is not None:
                yield from _think(cursor, sink, reasoning)

    return read


def _think(cursor: Cursor, sink: Sink, reasoning: Reasoning) -> Steps[None]:
    sink.tag()
    yield from cursor.literal(reasoning.open)  # some models repeat the tag that the prompt ends with
    yield from cursor.stream((reasoning.close,), sink.think)
    sink.tag()


def _bare(cursor: Cursor, sink: Sink, syntax: Syntax, tools: Mapping[str, Tool]) -> Steps[None]:
    """Read calls without a tag, at the beginning of the answer."""
    cursor.mark()
    first = yield from cursor.blank()
    is_call = bool(first) and first in syntax.bare
    cursor.rewind()
    if is_call:
        yield from _calls(cursor, sink, syntax, tools, "")
    cursor.release()


def _calls(cursor: Cursor, sink: Sink, syntax: Syntax, tools: Mapping[str, Tool], tag: str) -> Steps[None]:
    """Read calls after ``tag``; text after the last complete call that turns out not to be a call is content."""
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
