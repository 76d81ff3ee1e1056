"""Gemma: ``<|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>``."""

from __future__ import annotations

import json
from functools import partial

from infeng_chat.answers import jsonstream
from infeng_chat.answers.calls import Calls, Syntax
from infeng_chat.answers.cursor import Cursor, MalformedError, Steps
from infeng_chat.syntaxes import gemma_grammar
from infeng_chat.syntaxes.functions import MOST_NAME

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'


def read(calls: Calls, tag: str) -> Steps[None]:
    """Read one call."""
    cursor = calls.cursor
    yield from cursor.expect("call:")
    name, _ = yield from cursor.until("{", most=MOST_NAME)
    cursor.at -= 1
    calls.open(name)
    yield from _value(cursor, calls.arguments)
    calls.close()
    yield from cursor.blank()
    yield from cursor.literal(CLOSE)


def _value(cursor: Cursor, give: jsonstream.Give, depth: int = 0) -> Steps[None]:
    first = yield from cursor.blank()
    if depth > jsonstream.MOST_DEPTH:
        raise MalformedError
    if first in ("{", "["):
        yield from _several(cursor, give, first, depth)
    elif (yield from cursor.literal(QUOTE)):
        text, _ = yield from cursor.until(QUOTE)
        give(json.dumps(text, ensure_ascii=False))
    else:
        yield from jsonstream.value(cursor, give, depth)


def _several(cursor: Cursor, give: jsonstream.Give, bracket: str, depth: int) -> Steps[None]:
    cursor.at += 1
    give(bracket)
    between = ""
    while (yield from jsonstream.members(cursor)):
        give(between)
        if bracket == "{":
            is_quoted = yield from cursor.literal(QUOTE)
            key, _ = yield from cursor.until(QUOTE if is_quoted else ":", most=MOST_NAME)
            if is_quoted:
                yield from cursor.expect(":")
            give(json.dumps(key.strip(), ensure_ascii=False) + ": ")
        yield from _value(cursor, give, depth + 1)
        between = ", "
    give("}" if bracket == "{" else "]")


SYNTAX = Syntax(
    name="gemma",
    markers=((OPEN, QUOTE),),
    opens=(OPEN,),
    read=read,
    grammar=partial(gemma_grammar.calls, open=OPEN, close=CLOSE, quote=QUOTE),
)
