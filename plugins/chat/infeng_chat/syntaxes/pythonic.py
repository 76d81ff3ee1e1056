"""Calls in Python's syntax: ``[f(a=1), g(b="x")]``, between tags or as the whole answer."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from infeng_chat.answers.calls import Calls, Syntax, Tag, Tool, parameters
from infeng_chat.answers.cursor import Cursor, MalformedError, Steps
from infeng_chat.syntaxes import lark
from infeng_chat.syntaxes.typed import properties

MOST = 1 << 16
"""Most characters of one list."""


def read(close: str, calls: Calls, tag: str) -> Steps[None]:
    """Read a list of calls of the request's tools."""
    text = yield from _bracketed(calls.cursor)
    for name, arguments in _calls(text):
        if name not in calls.tools:
            raise MalformedError
        calls.whole(name, arguments)
    if close:
        yield from calls.cursor.blank()
        yield from calls.cursor.literal(close)


def _bracketed(cursor: Cursor) -> Steps[str]:
    """Read a bracketed text, including the brackets."""
    if (yield from cursor.blank()) != "[":
        raise MalformedError
    pieces: list[str] = []
    depth, quote = 0, ""
    while len(pieces) < MOST:
        letter = yield from cursor.take()
        pieces.append(letter)
        if quote:
            if letter == "\\":
                pieces.append((yield from cursor.take()))
            elif letter == quote:
                quote = ""
        elif letter in "\"'":
            quote = letter
        elif letter in "[({":
            depth += 1
        elif letter in "])}":
            depth -= 1
            if depth == 0:
                return "".join(pieces)
    raise MalformedError


def _calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and arguments of the calls in a list; raises MalformedError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as SyntaxWarning for unknown escapes
            tree = ast.parse(text, mode="eval").body
        elements = tree.elts if isinstance(tree, ast.List) else []
        found = [(ast.unparse(call.func), _arguments(call)) for call in elements if isinstance(call, ast.Call)]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise MalformedError from None
    if not found or len(found) != len(elements):
        raise MalformedError
    return found


def _arguments(call: ast.Call) -> dict[str, Any]:
    if call.args or not all(keyword.arg for keyword in call.keywords):
        raise ValueError("only keyword arguments are read")
    found = {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords}
    json.dumps(found, allow_nan=False)  # raises TypeError for values that JSON lacks, such as sets
    return found


def _literal(node: ast.expr) -> Any:
    """Return a literal; true, false and null are accepted too."""
    for child in ast.walk(node):
        for name, old in ast.iter_fields(child):
            if isinstance(old, ast.Name) and old.id in ("true", "false", "null"):
                setattr(child, name, ast.Constant({"true": True, "false": False, "null": None}[old.id]))
            elif isinstance(old, list):
                old[:] = [_word(item) for item in old]
    return ast.literal_eval(_word(node))


def _word(node: Any) -> Any:
    words = {"true": True, "false": False, "null": None}
    return ast.Constant(words[node.id]) if isinstance(node, ast.Name) and node.id in words else node


def grammar(open: str, close: str, tools: Mapping[str, Tool], tag: Tag, parallel: bool) -> str:
    """Return the grammar of a list of calls; arguments are in the order of the schema."""
    rules = []
    for index, (name, tool) in enumerate(tools.items()):
        needed = parameters(tool).get("required") or []
        rules.append(f'call_{index}: {lark.quoted(name + "(")} first_{index}_0 ")"')
        keys = list(properties(tool).items())
        for number, (key, of) in enumerate(keys):
            after = number + 1
            rules.append(f"value_{index}_{number}: {lark.quoted(key + '=')} {lark.schema(of)}")
            for rule, before in (("first", ""), ("more", '", " ')):
                written = f"{before}value_{index}_{number} more_{index}_{after}"
                skipped = "" if key in needed else f" | {rule}_{index}_{after}"
                rules.append(f"{rule}_{index}_{number}: {written}{skipped}")
        rules += [f'first_{index}_{len(keys)}: ""', f'more_{index}_{len(keys)}: ""']
    repeat = 'call (", " call)*' if parallel else "call"
    begin, end = (tag(open) if open else ""), (tag(close) if close else "")
    choice = " | ".join(f"call_{index}" for index in range(len(tools)))
    return "\n".join([lark.start(begin, '"["', repeat, '"]"', end).strip(), f"call: {choice}", *rules, ""])


def _syntax(name: str, marker: str, open: str, close: str) -> Syntax:
    return Syntax(
        name=name,
        markers=((marker,),),
        opens=(open,) if open else (),
        read=partial(read, close),
        bare="" if open else "[",
        grammar=partial(grammar, open, close),
    )


SYNTAXES = (
    _syntax("lfm", "<|tool_call_start|>", "<|tool_call_start|>", "<|tool_call_end|>"),
    _syntax("pythonic-tagged", "<|python_start|>", "<|python_start|>", "<|python_end|>"),
    _syntax("pythonic", "[func_name1(", "", ""),
)
