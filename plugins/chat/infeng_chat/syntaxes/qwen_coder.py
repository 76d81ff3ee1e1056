"""Qwen3-Coder, Step and Seed: ``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from infeng_chat.answers.calls import Calls, Syntax, Tag, Tool, parameters
from infeng_chat.answers.cursor import MalformedError, Steps
from infeng_chat.syntaxes import lark
from infeng_chat.syntaxes.functions import MOST_NAME
from infeng_chat.syntaxes.typed import is_text, member, properties

FUNCTION, PARAMETER, END_PARAMETER, END = "<function=", "<parameter=", "</parameter>", "</function>"


def read(open: str, close: str, calls: Calls, tag: str) -> Steps[None]:
    """Read one call."""
    cursor = calls.cursor
    if tag == open:
        yield from cursor.expect(FUNCTION)
    name, _ = yield from cursor.until(">", most=MOST_NAME)
    calls.open(name)
    known, between = properties(calls.tools.get(name.strip())), "{"
    while not (yield from _ends(calls, close)):
        yield from cursor.expect(PARAMETER)
        key, _ = yield from cursor.until(">", most=MOST_NAME)
        text, _ = yield from cursor.until(END_PARAMETER)
        text = text.removeprefix("\n").removesuffix("\n")
        calls.arguments(between + member(key.strip(), text, known.get(key.strip())))
        between = ", "
    calls.arguments("{}" if between == "{" else "}")
    calls.close()
    yield from cursor.blank()
    yield from cursor.literal(close)


def _ends(calls: Calls, close: str) -> Steps[bool]:
    """Consume the end of a call if it is next; ``</function>`` may be missing."""
    cursor = calls.cursor
    if not (yield from cursor.blank()):
        raise MalformedError
    if (yield from cursor.literal(END)):
        return True
    return (yield from cursor.literal(close))


def grammar(open: str, close: str, line: str, tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of calls. line: the text between a value and its tags."""
    rules = []
    for index, (name, tool) in enumerate(tools.items()):
        schemas = properties(tool)
        needed = parameters(tool).get("required") or []
        parts = []
        for number, (key, of) in enumerate(schemas.items()):
            begin = lark.quoted(f"{PARAMETER}{key}>{line}")
            end = lark.quoted(f"{line}{END_PARAMETER}\n")
            if is_text(of) and not of.get("enum"):
                rules.append(f"value_{index}_{number}[suffix={end}]: /(?s:.*)/")
                expression = f"{begin} value_{index}_{number}"
            else:
                rules.append(f"value_{index}_{number}: {_value(of)}")
                expression = f"{begin} value_{index}_{number} {end}"
            parts.append(f"({expression})" if key in needed else f"({expression})?")
        head = lark.quoted(f"\n{FUNCTION}{name}>\n")
        body = " ".join(parts)
        rules.append(f'call_{index}: {tag(open)} {head} {body} "{END}\\n" {tag(close)}')
    repeat = 'call ("\\n" call)*' if parallel else "call"
    choice = " | ".join(f"call_{index}" for index in range(len(tools)))
    return "\n".join([f"start: {repeat}", f"call: {choice}", *rules, ""])


def _value(schema: Mapping[str, object]) -> str:
    """Return the expression of a value that is not free text."""
    words = schema.get("enum")
    if is_text(schema) and isinstance(words, list):
        return " | ".join(lark.quoted(str(word)) for word in words)
    return lark.schema(schema)


def _syntax(name: str, open: str, close: str, line: str) -> Syntax:
    return Syntax(
        name=name,
        markers=((open, FUNCTION, PARAMETER),),
        opens=(open, FUNCTION),
        read=partial(read, open, close),
        grammar=partial(grammar, open, close, line),
    )


SYNTAXES = (
    _syntax("seed", "<seed:tool_call>", "</seed:tool_call>", ""),
    _syntax("qwen-coder", "<tool_call>", "</tool_call>", "\n"),
)
