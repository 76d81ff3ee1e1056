"""JSON between tags: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, and lists of such objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from infeng_chat.answers import jsonstream
from infeng_chat.answers.calls import Calls, Syntax, Tag, Tool, read_arguments, read_list, read_object
from infeng_chat.answers.cursor import Steps
from infeng_chat.syntaxes import lark


def read(one: Callable[[Calls], Steps[None]], close: str, calls: Calls, tag: str) -> Steps[None]:
    """Read an object or a list of objects, and the closing tag if there is one."""
    yield from read_list(calls, one)
    if close:
        yield from calls.cursor.blank()
        yield from calls.cursor.literal(close)


def read_pair(calls: Calls) -> Steps[None]:
    """Read ``{NAME: {...}}``."""
    yield from calls.cursor.expect("{")
    name = yield from jsonstream.text(calls.cursor)
    yield from calls.cursor.expect(":")
    calls.open(name)
    yield from read_arguments(calls)
    yield from calls.cursor.expect("}")
    calls.close()


def tagged(open: str, close: str, tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of calls on lines, each between tags."""

    def one(name: str, arguments: str) -> str:
        return lark.between(tag, open, f'"\\n" {lark.named_object(name, arguments)} "\\n"', close)

    return lark.start("calls") + lark.calls(tools, one, several='"\\n"' if parallel else None)


def listed(open: str, close: str, tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of a list of calls between tags."""
    begin, end = lark.between(tag, open, '"["', ""), '"]"' + (f" {tag(close)}" if close else "")
    return lark.start(begin, "calls", end) + lark.calls(tools, lark.named_object, several='", "' if parallel else None)


def listed_tools(open: str, close: str, tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of a list of ``{"tool_name": ..., "parameters": {...}}``."""

    def one(name: str, arguments: str) -> str:
        return lark.named_object(name, arguments, "parameters", "tool_name")

    begin, end = lark.between(tag, open, '"["', ""), f'"]" {tag(close)}'
    return lark.start(begin, "calls", end) + lark.calls(tools, one, several='", "' if parallel else None)


def pairs(open: str, close: str, tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of a list of ``{NAME: {...}}``."""

    def one(name: str, arguments: str) -> str:
        return f'{lark.quoted("{" + lark.quoted(name) + ": ")} {arguments} "}}"'

    begin, end = lark.between(tag, open, '"["', ""), f'"]" {tag(close)}'
    return lark.start(begin, "calls", end) + lark.calls(tools, one, several='", "' if parallel else None)


def alone(open: str, close: str, tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of one call, for templates that render a single call only."""
    return lark.start(tag(open), "calls", tag(close) if close else "") + lark.calls(
        tools, lark.named_object, several=None
    )


def _syntax(
    name: str, marker: str, open: str, close: str, grammar: Callable[..., str], one: Callable[[Calls], Steps[None]]
) -> Syntax:
    return Syntax(
        name=name,
        markers=((marker,),),
        opens=(open,),
        read=partial(read, one, close),
        grammar=partial(grammar, open, close),
    )


HERMES = _syntax("hermes", "<tool_call>", "<tool_call>", "</tool_call>", tagged, read_object)
"""The syntax of Qwen and many more, and the one described to models whose template does not render tools."""

SYNTAXES = (
    _syntax("apriel", "<tool_calls>[", "<tool_calls>", "</tool_calls>", listed, read_object),
    _syntax("apertus", "<|tools_prefix|>", "<|tools_prefix|>", "<|tools_suffix|>", pairs, read_pair),
    _syntax("command", "<|START_ACTION|>", "<|START_ACTION|>", "<|END_ACTION|>", listed_tools, read_object),
    _syntax("nemotron", "<TOOLCALL>", "<TOOLCALL>", "</TOOLCALL>", listed, read_object),
    _syntax("phi", "<|/tool_call|>", "<|tool_call|>", "<|/tool_call|>", listed, read_object),
    _syntax("gigachat", "<|function_call|>", "<|function_call|>", "", alone, read_object),
    _syntax("granite", "<|tool_call|>", "<|tool_call|>", "", listed, read_object),
    HERMES,
)
