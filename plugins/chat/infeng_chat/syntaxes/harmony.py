"""gpt-oss's Harmony: messages with channels, ``<|channel|>analysis<|message|>...<|end|><|start|>assistant...``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from infeng_chat.answers.calls import Calls, Syntax, Tag, Tool, read_arguments
from infeng_chat.answers.cursor import Cursor, MalformedError, Steps
from infeng_chat.answers.parser import Reader
from infeng_chat.answers.sink import Sink
from infeng_chat.syntaxes import lark

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>", START)
MOST_HEADER = 512

_RECIPIENT = re.compile(r"to=(\S+?)(?:<\||\s|$)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def answer(tools: Mapping[str, Tool]) -> Reader:
    """Return the reader of an answer, which begins within the header of its first message."""

    def read(cursor: Cursor, sink: Sink) -> Steps[None]:
        while (yield from cursor.char()):
            yield from _message(cursor, sink, tools)

    return read


def _message(cursor: Cursor, sink: Sink, tools: Mapping[str, Tool]) -> Steps[None]:
    """Read one message."""
    cursor.mark()
    yield from cursor.literal(START)
    try:
        header, _ = yield from cursor.until(MESSAGE, most=MOST_HEADER)
    except MalformedError:  # not Harmony
        cursor.rewind()
        cursor.release()
        yield from cursor.stream(ENDS, sink.content)
        return
    cursor.release()
    sink.tag()
    channel = _CHANNEL.search(header)
    recipient = _RECIPIENT.search(header)
    if recipient is not None and tools:
        yield from _call(cursor, sink, tools, recipient.group(1).removeprefix("functions."))
    elif channel is not None and channel.group(1) == "analysis":
        yield from cursor.stream(ENDS, sink.think)
    else:
        yield from cursor.stream(ENDS, sink.content)
    sink.tag()


def _call(cursor: Cursor, sink: Sink, tools: Mapping[str, Tool], name: str) -> Steps[None]:
    """Read the arguments of a call."""
    calls = Calls(cursor, sink, tools)
    cursor.mark()
    try:
        if (yield from cursor.blank()) != "{":
            raise MalformedError
        calls.open(name)
        yield from read_arguments(calls)
        calls.close()
    except MalformedError:
        if not calls.is_open:
            cursor.rewind()
    cursor.release()
    yield from cursor.stream(ENDS, sink.content)


def read(calls: Calls, tag: str) -> Steps[None]:
    """Read nothing: calls are separate messages, see ``answer``."""
    raise MalformedError
    yield


def grammar(tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of one call, with which the answer ends."""

    def one(name: str, arguments: str) -> str:
        head = lark.quoted(f"commentary to=functions.{name} ")
        return f'{tag(CHANNEL)} {head} {tag(CONSTRAIN)} "json" {tag(MESSAGE)} {arguments}'

    return lark.start("calls") + lark.calls(tools, one, several=None)


SYNTAX = Syntax(
    name="harmony",
    markers=((CHANNEL, MESSAGE, START),),
    opens=(),
    read=read,
    stops=("<|return|>", "<|call|>"),
    grammar=grammar,
)
