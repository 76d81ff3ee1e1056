"""DeepSeek: V3.1 writes ``NAME<｜tool▁sep｜>{...}``, R1 and V3 ``function<｜tool▁sep｜>NAME`` and a fenced block."""

from __future__ import annotations

from collections.abc import Mapping

from infeng_chat.answers.calls import Calls, Syntax, Tag, Tool, read_arguments
from infeng_chat.answers.cursor import Steps
from infeng_chat.syntaxes import lark
from infeng_chat.syntaxes.functions import MOST_NAME

OPEN, CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE = "```json"


def read(calls: Calls, tag: str) -> Steps[None]:
    """Read all calls."""
    cursor = calls.cursor
    while (yield from cursor.blank()) and not (yield from cursor.literal(CLOSE)):
        yield from cursor.expect(BEGIN)
        name, _ = yield from cursor.until(SEPARATOR, most=MOST_NAME)
        is_fenced = (yield from cursor.blank()) != "{"
        if is_fenced:
            name, _ = yield from cursor.until("\n", most=MOST_NAME)
            yield from cursor.expect(FENCE)
        calls.open(name)
        yield from read_arguments(calls)
        calls.close()
        for end in ("```", END):
            yield from cursor.blank()
            yield from cursor.literal(end)


def grammar(tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of V3.1's calls."""

    def one(name: str, arguments: str) -> str:
        return f"{tag(BEGIN)} {lark.quoted(name)} {tag(SEPARATOR)} {arguments} {tag(END)}"

    return lark.start(tag(OPEN), "calls", tag(CLOSE)) + lark.calls(tools, one, several="" if parallel else None)


def fenced_grammar(tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of fenced calls."""

    def one(name: str, arguments: str) -> str:
        begin = lark.quoted(f"{name}\n{FENCE}\n")
        return f'{tag(BEGIN)} "function" {tag(SEPARATOR)} {begin} {arguments} "\\n```" {tag(END)}'

    between = '"\\n"' if parallel else None
    return lark.start(tag(OPEN), "calls", tag(CLOSE)) + lark.calls(tools, one, several=between)


SYNTAXES = (
    Syntax("deepseek-fenced", ((OPEN, FENCE),), (OPEN,), read, grammar=fenced_grammar),
    Syntax("deepseek", ((OPEN,),), (OPEN,), read, grammar=grammar),
)
