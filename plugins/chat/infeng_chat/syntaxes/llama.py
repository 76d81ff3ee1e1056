"""Llama 3: ``{"name": ..., "parameters": {...}}`` as the whole answer, or after ``<|python_tag|>``."""

from __future__ import annotations

from collections.abc import Mapping

from infeng_chat.answers.calls import Calls, Syntax, Tag, Tool, read_object
from infeng_chat.answers.cursor import MalformedError, Steps
from infeng_chat.syntaxes import lark

OPEN = "<|python_tag|>"


def read(calls: Calls, tag: str) -> Steps[None]:
    """Read objects that call the request's tools, with semicolons or nothing between them."""
    cursor = calls.cursor
    if (yield from cursor.blank()) != "{":
        raise MalformedError
    while True:
        yield from read_object(calls, known=True)
        if (yield from cursor.blank()) == ";":
            cursor.at += 1
        if (yield from cursor.blank()) != "{":
            return


def grammar(tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of objects without a tag."""

    def one(name: str, arguments: str) -> str:
        return lark.named_object(name, arguments, "parameters")

    return lark.start("calls") + lark.calls(tools, one, several='"; "' if parallel else None)


SYNTAX = Syntax(
    name="llama",
    markers=(('{"name": function name, "parameters"',), (OPEN,)),
    opens=(OPEN,),
    read=read,
    bare="{",
    stops=("<|eom_id|>", "<|eot_id|>"),
    grammar=grammar,
)
