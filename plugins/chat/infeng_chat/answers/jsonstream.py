"""A streaming converter from the JSON that models write to strict JSON.

The output is a prefix of a valid document at any time. Beyond JSON, the input may have line breaks in strings, single
quotes, keys without quotes, trailing commas, and Python's True, False and None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from infeng_chat.answers.cursor import Cursor, MalformedError, Steps

MOST_DEPTH = 64
Give = Callable[[str], object]

_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_PLAIN = {quote: re.compile(rf"[^\\\"{quote}\x00-\x1f]*") for quote in "\"'"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")


def value(cursor: Cursor, give: Give, depth: int = 0) -> Steps[None]:
    """Read a value after blanks and pass it on; raises MalformedError."""
    first = yield from cursor.blank()
    if depth > MOST_DEPTH:
        raise MalformedError
    if first == "{":
        yield from _object(cursor, give, depth)
    elif first == "[":
        yield from _array(cursor, give, depth)
    elif first in ('"', "'"):
        yield from string(cursor, give)
    elif first == "-" or first.isdigit():
        number = yield from _run(cursor, lambda letter: letter in "+-.eE0123456789")
        if not _NUMBER.fullmatch(number):
            raise MalformedError
        give(number)
    else:
        word = yield from _run(cursor, str.isalpha)
        if word not in _WORDS:
            raise MalformedError
        give(_WORDS[word])


def parsed(cursor: Cursor) -> Steps[Any]:
    """Read a value and return it."""
    pieces: list[str] = []
    yield from value(cursor, pieces.append)
    return json.loads("".join(pieces))


def text(cursor: Cursor) -> Steps[str]:
    """Read a string after blanks and return its text; raises MalformedError for any other text."""
    first = yield from cursor.blank()
    if first not in ('"', "'"):
        raise MalformedError
    pieces: list[str] = []
    yield from string(cursor, pieces.append)
    found: str = json.loads("".join(pieces))
    return found


def members(cursor: Cursor) -> Steps[bool]:
    """Consume the comma before the next member of an object or array, or the closing bracket; return False for it."""
    first = yield from cursor.blank()
    if first == ",":
        cursor.at += 1
        first = yield from cursor.blank()
    if first in ("}", "]"):
        cursor.at += 1
        return False
    return True


def string(cursor: Cursor, give: Give) -> Steps[None]:
    """Read a string, whose quote is next, and pass it on."""
    quote = yield from cursor.take()
    plain = _PLAIN[quote]
    give('"')
    while True:
        first = yield from cursor.take()
        if first == quote:
            give('"')
            return
        if first == "\\":
            give((yield from _escape(cursor)))
        elif first < " " or first == '"':
            give(json.dumps(first)[1:-1])
        else:
            match = plain.match(cursor.text, cursor.at)
            assert match is not None
            cursor.at = match.end()
            give(first + match.group())


def _escape(cursor: Cursor) -> Steps[str]:
    """Read the rest of an escape; return JSON's escape for it."""
    letter = yield from cursor.take()
    if letter == "u":
        digits = ""
        for _ in range(4):
            digits += yield from cursor.take()
        if not _HEX.fullmatch(digits):
            raise MalformedError
        return f"\\u{digits}"
    if letter in '"\\/bfnrt':
        return f"\\{letter}"
    return "'" if letter == "'" else "\\\\" + json.dumps(letter, ensure_ascii=False)[1:-1]


def _object(cursor: Cursor, give: Give, depth: int) -> Steps[None]:
    yield from cursor.take()
    give("{")
    between = ""
    first = yield from cursor.blank()
    while first != "}":
        give(between)
        if first in ('"', "'"):
            yield from string(cursor, give)
        else:
            key = yield from _run(cursor, lambda letter: letter.isalnum() or letter in "_-$")
            if not key:
                raise MalformedError
            give(json.dumps(key, ensure_ascii=False))
        yield from cursor.expect(":")
        give(": ")
        yield from value(cursor, give, depth + 1)
        between = ", "
        first = yield from _next(cursor, "}")
    cursor.at += 1
    give("}")


def _array(cursor: Cursor, give: Give, depth: int) -> Steps[None]:
    yield from cursor.take()
    give("[")
    between = ""
    first = yield from cursor.blank()
    while first != "]":
        give(between)
        yield from value(cursor, give, depth + 1)
        between = ", "
        first = yield from _next(cursor, "]")
    cursor.at += 1
    give("]")


def _next(cursor: Cursor, close: str) -> Steps[str]:
    """Consume a comma; return the first character of the next member, or ``close``."""
    first = yield from cursor.blank()
    if first == close:
        return first
    if first != ",":
        raise MalformedError
    cursor.at += 1
    return (yield from cursor.blank())


def _run(cursor: Cursor, belongs: Callable[[str], bool]) -> Steps[str]:
    """Read characters while ``belongs`` holds."""
    pieces = []
    while (letter := (yield from cursor.char())) and belongs(letter):
        pieces.append(letter)
        cursor.at += 1
    return "".join(pieces)
