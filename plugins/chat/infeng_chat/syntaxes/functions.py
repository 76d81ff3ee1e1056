"""``<function=NAME>{...}</function>``, the syntax of functionary and some Llamas."""

from __future__ import annotations

from collections.abc import Mapping

from infeng_chat.answers.calls import Calls, Syntax, Tag, Tool, read_arguments
from infeng_chat.answers.cursor import Steps
from infeng_chat.syntaxes import lark

OPEN, CLOSE = "<function=", "</function>"
MOST_NAME = 256


def read(calls: Calls, tag: str) -> Steps[None]:
    """Read a name and its arguments."""
    name, _ = yield from calls.cursor.until(">", most=MOST_NAME)
    if (yield from calls.cursor.blank()) != "{":
        yield from calls.cursor.expect("{")
    calls.open(name)
    yield from read_arguments(calls)
    calls.close()
    yield from calls.cursor.blank()
    yield from calls.cursor.literal(CLOSE)


def grammar(tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of calls one after the other."""

    def one(name: str, arguments: str) -> str:
        return f'{lark.quoted(f"{OPEN}{name}>")} {arguments} "{CLOSE}"'

    return lark.start("calls") + lark.calls(tools, one, several="" if parallel else None)


SYNTAX = Syntax(
    name="functions", markers=((OPEN,),), opens=(OPEN,), read=read, stops=("<|eom_id|>", "<|eot_id|>"), grammar=grammar
)
