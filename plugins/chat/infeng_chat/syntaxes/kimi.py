"""Kimi: a section of calls, each ``<|tool_call_begin|>functions.NAME:N<|tool_call_argument_begin|>{...}``."""

from __future__ import annotations

from collections.abc import Mapping

from infeng_chat.answers.calls import Calls, Syntax, Tag, Tool, read_arguments
from infeng_chat.answers.cursor import Steps
from infeng_chat.syntaxes import lark
from infeng_chat.syntaxes.functions import MOST_NAME

OPEN, CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
BEGIN, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def read(calls: Calls, tag: str) -> Steps[None]:
    """Read the calls of a section."""
    cursor = calls.cursor
    while (yield from cursor.blank()) and not (yield from cursor.literal(CLOSE)):
        yield from cursor.expect(BEGIN)
        where, _ = yield from cursor.until(ARGUMENTS, most=MOST_NAME)
        calls.open(where.strip().removeprefix("functions.").rpartition(":")[0] or where)
        yield from read_arguments(calls)
        calls.close()
        yield from cursor.blank()
        yield from cursor.literal(END)


def grammar(tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of one section."""

    def one(name: str, arguments: str) -> str:
        number = f"{lark.quoted(f'functions.{name}:')} /[0-9]{{1,3}}/"
        return f"{tag(BEGIN)} {number} {tag(ARGUMENTS)} {arguments} {tag(END)}"

    return lark.start(tag(OPEN), "calls", tag(CLOSE)) + lark.calls(tools, one, several="" if parallel else None)


SYNTAX = Syntax("kimi", ((OPEN, BEGIN),), (OPEN,), read, grammar=grammar)
