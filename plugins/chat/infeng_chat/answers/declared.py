"""Parsing of answers by ``response_template`` of tokenizer_config.json (transformers' response templates).

The template has named fields, each with opening and closing delimiters and a content type for the text between them. A
field without an opening delimiter takes all remaining text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import re2

from infeng_chat.answers.calls import Tool
from infeng_chat.answers.content import read, transformed
from infeng_chat.answers.cursor import Cursor, Steps
from infeng_chat.answers.parser import Reader
from infeng_chat.answers.sink import Sink
from infeng_chat.syntaxes.typed import properties, value

REASONING = ("thinking", "reasoning", "reasoning_content")
CALLS = "tool_calls"
MOST_DELIMITER = 4096
"""Most characters that a pattern may match."""
_KEYS = {"open", "open_pattern", "close", "close_pattern", "repeats", "optional", "content", "content_args",
         "transform", "transform_each", "join"}  # fmt: skip


class UnknownTemplateError(Exception):
    """A response template uses a feature that is not supported."""


@dataclass(frozen=True, slots=True)
class Delimiter:
    """The opening or closing delimiter of a field: texts, or a pattern that begins with a text."""

    texts: tuple[str, ...]
    pattern: Any = None

    @staticmethod
    def of(field: Mapping[str, Any], name: str) -> Delimiter | None:
        """Return a field's delimiter ``name``, None without one; raises UnknownTemplateError."""
        literal, pattern = field.get(name), field.get(f"{name}_pattern")
        if isinstance(pattern, str):
            begin = _literal_beginning(pattern)
            if not begin:
                raise UnknownTemplateError(f"{name}_pattern {pattern!r} does not begin with a text")
            try:
                return Delimiter((begin,), re2.compile(f"(?s:{pattern})"))
            except re2.error as error:
                raise UnknownTemplateError(f"{name}_pattern {pattern!r}: {error}") from None
        texts = (literal,) if isinstance(literal, str) else tuple(literal or ())
        if not all(isinstance(text, str) and text for text in texts):
            raise UnknownTemplateError(f"{name} {literal!r} is not a text")
        return Delimiter(texts) if texts else None


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an answer."""

    name: str
    open: Delimiter | None
    close: Delimiter | None
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Declared:
    """A response template."""

    fields: tuple[Field, ...]
    anchor: Any
    """Pattern of the text after which the answer begins in a prompt."""

    @staticmethod
    def of(document: Mapping[str, Any]) -> Declared:
        """Parse the response template of a tokenizer_config.json; raises UnknownTemplateError."""
        specs = document.get("fields")
        if not isinstance(specs, Mapping) or not all(isinstance(spec, Mapping) for spec in specs.values()):
            raise UnknownTemplateError("fields are missing")
        for name, spec in specs.items():
            if unknown := set(spec) - _KEYS:
                raise UnknownTemplateError(f"{name}: {sorted(unknown)[0]} is not known")
        fields = tuple(
            Field(name, Delimiter.of(spec, "open"), Delimiter.of(spec, "close"), spec) for name, spec in specs.items()
        )
        if sum(field.open is None for field in fields) > 1:
            raise UnknownTemplateError("more than one field has no opening delimiter")
        literal, pattern = document.get("start_anchor"), document.get("start_anchor_pattern")
        literals = [literal] if isinstance(literal, str) else literal or []
        try:
            anchor = re2.compile(f"(?s:{pattern})" if pattern else "|".join(map(re.escape, literals)))
        except (re2.error, TypeError) as error:
            raise UnknownTemplateError(f"start_anchor: {error}") from None
        return Declared(fields, anchor)

    def begun(self, prompt: str) -> str:
        """Return the beginning of the answer that a prompt already contains."""
        ends = [match.end() for match in self.anchor.finditer(prompt)]
        return prompt[ends[-1] :] if ends else ""

    def reader(self, tools: Mapping[str, Tool]) -> Reader:
        """Return a reader of an answer."""
        left = next((field for field in self.fields if field.open is None), None)
        opened = [field for field in self.fields if field.open is not None and (field.name != CALLS or tools)]
        closes = left.close.texts if left is not None and left.close is not None else ()

        def run(cursor: Cursor, sink: Sink) -> Steps[None]:
            tags = {text: field for field in opened if field.open is not None for text in field.open.texts}
            while (tag := (yield from cursor.stream((*tags, *closes), sink.content))) is not None:
                if tag in tags:
                    yield from _field(cursor, sink, tags[tag], tag, tools)
                else:
                    sink.tag()

        return run


def _field(cursor: Cursor, sink: Sink, field: Field, tag: str, tools: Mapping[str, Tool]) -> Steps[None]:
    """Read a field after its opening text, or after the text that begins its opening pattern."""
    assert field.open is not None
    cursor.mark()
    found = yield from _matched(cursor, field.open, tag)
    if found is None:
        cursor.rewind()
        cursor.release()
        sink.content(tag)
        return
    cursor.release()
    begin, captures = found
    if field.name in REASONING:
        sink.tag()
        yield from _until(cursor, field.close, sink.think, captures)
        sink.tag()
    elif field.name == CALLS:
        pieces: list[str] = []
        end = yield from _until(cursor, field.close, pieces.append, captures)
        body = "".join(pieces)
        try:
            calls = transformed(field.spec, read(field.spec, body), captures)
            _give(sink, calls if isinstance(calls, list) else [calls], tools)
        except (ValueError, TypeError, KeyError, RecursionError):
            sink.content(begin + body + end)
        else:
            sink.tag()
    elif field.name == "content":
        sink.tag()
        yield from _until(cursor, field.close, sink.content, captures)
        sink.tag()
    else:  # a field without a counterpart in the API
        yield from _until(cursor, field.close, lambda text: None, captures)


def _until(cursor: Cursor, close: Delimiter | None, give: Any, captures: dict[str, str]) -> Steps[str]:
    """Pass on the text of a field; return the delimiter that ends it."""
    texts = () if close is None else close.texts
    while (tag := (yield from cursor.stream(texts, give))) is not None:
        assert close is not None
        cursor.mark()
        found = yield from _matched(cursor, close, tag)
        if found is not None:
            captures |= found[1]
            cursor.release()
            return found[0]
        cursor.rewind()
        cursor.release()
        give(tag)
    return ""


def _matched(cursor: Cursor, what: Delimiter, tag: str) -> Steps[tuple[str, dict[str, str]] | None]:
    """Consume the rest of a begun delimiter; return it and its named groups, None if it does not match."""
    if what.pattern is None:
        return tag, {}
    while True:
        text = cursor.text[cursor.at : cursor.at + MOST_DELIMITER]
        match = what.pattern.match(tag + text)
        is_all = cursor.ended or len(text) == MOST_DELIMITER
        if match is not None and (is_all or match.end() < len(tag) + len(text)):
            cursor.at += match.end() - len(tag)
            return match.group(), {name: group for name, group in match.groupdict().items() if group is not None}
        if is_all:
            return None
        yield


def _give(sink: Sink, calls: Sequence[Any], tools: Mapping[str, Tool]) -> None:
    """Pass on complete calls; raises TypeError or KeyError if one is malformed, before any is passed on."""
    import json

    found = []
    for call in calls:
        function = call.get("function", call)
        name, arguments = function["name"], function.get("arguments") or {}
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        known = properties(tools.get(name))
        typed = {
            key: value(item, known[key]) if isinstance(item, str) and key in known else item
            for key, item in arguments.items()
        }
        found.append((str(name), json.dumps(typed, ensure_ascii=False)))
    for name, text in found:
        sink.open(name)
        sink.arguments(text)


def _literal_beginning(pattern: str) -> str:
    """Return the literal prefix that all matches of a pattern have."""
    found: list[str] = []
    at = 0
    if re.search(r"(?<!\\)\|", re.sub(r"\[[^]]*\]|\([^()]*\)", "", pattern)):
        return ""
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\" and at + 1 < len(pattern) and not pattern[at + 1].isalnum():
            letter, at = pattern[at + 1], at + 1
        elif letter in "\\.^$*+?{}[]()|":
            break
        at += 1
        if pattern[at : at + 1] in ("*", "?", "{"):
            break
        found.append(letter)
    return "".join(found)
