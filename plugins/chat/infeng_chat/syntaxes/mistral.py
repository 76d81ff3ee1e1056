"""``[TOOL_CALLS][{"name": ..., "arguments": ...}]`` and ``[TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}``."""

from __future__ import annotations

from collections.abc import Mapping

from infeng_chat.answers.calls import Calls, Syntax, Tag, Tool, read_arguments, read_list, read_object
from infeng_chat.answers.cursor import MalformedError, Steps
from infeng_chat.syntaxes import lark, tags
from infeng_chat.syntaxes.functions import MOST_NAME

OPEN, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def read(calls: Calls, tag: str) -> Steps[None]:
    """Read a list of calls, or a call that begins with its name."""
    cursor = calls.cursor
    if (yield from cursor.blank()) in ("[", "{"):
        yield from read_list(calls, read_object)
        return
    name, end = yield from cursor.until(ID, ARGUMENTS, "{", most=MOST_NAME)
    if end == ID:
        _, end = yield from cursor.until(ARGUMENTS, "{", most=MOST_NAME)
    if end == "{":
        cursor.at -= 1
    if (yield from cursor.blank()) != "{":
        raise MalformedError
    calls.open(name)
    yield from read_arguments(calls)
    calls.close()


def grammar(tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of calls that begin with their names."""

    def one(name: str, arguments: str) -> str:
        return f"{tag(OPEN)} {lark.quoted(name)} {tag(ARGUMENTS)} {arguments}"

    return lark.start("calls") + lark.calls(tools, one, several="" if parallel else None)


def grammar_with_ids(tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the same, with an id before the arguments."""

    def one(name: str, arguments: str) -> str:
        return f"{tag(OPEN)} {lark.quoted(name)} {tag(ID)} /[a-zA-Z0-9]{{9}}/ {tag(ARGUMENTS)} {arguments}"

    return lark.start("calls") + lark.calls(tools, one, several="" if parallel else None)


def grammar_of_list(tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of a list of calls."""
    return tags.listed(OPEN, "", tools, tag, parallel)


SYNTAXES = (
    Syntax("mistral-ids", ((OPEN, ID, ARGUMENTS),), (OPEN,), read, grammar=grammar_with_ids),
    Syntax("mistral-names", ((OPEN, ARGUMENTS),), (OPEN,), read, grammar=grammar),
    Syntax("mistral", ((OPEN,),), (OPEN,), read, grammar=grammar_of_list),
)
