"""GLM: ``<tool_call>NAME`` and then ``<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`` for each argument."""

from __future__ import annotations

from collections.abc import Mapping

from infeng_chat.answers.calls import Calls, Syntax, Tag, Tool, parameters
from infeng_chat.answers.cursor import MalformedError, Steps
from infeng_chat.syntaxes import lark
from infeng_chat.syntaxes.functions import MOST_NAME
from infeng_chat.syntaxes.typed import is_text, member, properties

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, END_KEY, VALUE, END_VALUE = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


def read(calls: Calls, tag: str) -> Steps[None]:
    """Read one call."""
    cursor = calls.cursor
    yield from cursor.blank()
    name, end = yield from cursor.until("\n", KEY, CLOSE, most=MOST_NAME)
    calls.open(name)
    known, between = properties(calls.tools.get(name.strip())), "{"
    while end != CLOSE:
        if end != KEY:
            if not (yield from cursor.blank()):
                raise MalformedError
            if (yield from cursor.literal(CLOSE)):
                break
            yield from cursor.expect(KEY)
        key, _ = yield from cursor.until(END_KEY, most=MOST_NAME)
        yield from cursor.expect(VALUE)
        text, _ = yield from cursor.until(END_VALUE)
        calls.arguments(between + member(key.strip(), text, known.get(key.strip())))
        between, end = ", ", ""
    calls.arguments("{}" if between == "{" else "}")
    calls.close()


def grammar(tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of calls on lines."""
    rules = []
    for index, (name, tool) in enumerate(tools.items()):
        needed = parameters(tool).get("required") or []
        parts = []
        for number, (key, of) in enumerate(properties(tool).items()):
            rule = f"value_{index}_{number}"
            free = is_text(of)
            rules.append(f"{rule}: /[^<]*/" if free else f"{rule}: {lark.schema(of)}")
            written = f'"\\n" {tag(KEY)} {lark.quoted(key)} {tag(END_KEY)} "\\n" {tag(VALUE)} {rule} {tag(END_VALUE)}'
            parts.append(f"({written})" if key in needed else f"({written})?")
        body = " ".join(parts)
        rules.append(f'call_{index}: {tag(OPEN)} {lark.quoted(name)} {body} "\\n" {tag(CLOSE)}')
    repeat = 'call ("\\n" call)*' if parallel else "call"
    choice = " | ".join(f"call_{index}" for index in range(len(tools)))
    return "\n".join([f"start: {repeat}", f"call: {choice}", *rules, ""])


SYNTAX = Syntax("glm", ((KEY, VALUE),), (OPEN,), read, grammar=grammar)
