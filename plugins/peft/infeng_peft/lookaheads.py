"""Removal of negative lookaheads at the beginning of a pattern, as in ``^(?!.*vision).*q_proj``.

Adapters of models with a vision tower use them to exclude it, and RE2 has none. At the beginning of a pattern, a
lookahead is a pattern of its own: ``(?!A)R`` matches a text if R does and ``(?:A)(?s:.*)`` does not.
"""

from __future__ import annotations

import re
from typing import NamedTuple

BEGINS = "(?!"
TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+(?:\]|\Z)|[()|]|[^\\\[()|]+|.", re.DOTALL)
FLAGS = re.compile(r"\(\?[A-Za-z]+\)")  # flags, which would apply to other alternatives too
REPEATS = ("*", "+", "?", "{")


class Choice(NamedTuple):
    """One of the alternatives of a pattern: matched by ``text`` and by none of ``unless``."""

    text: str
    unless: tuple[str, ...] = ()


def choices(pattern: str) -> list[Choice]:
    """Return the alternatives of a pattern, or the whole pattern if none begins with a negative lookahead."""
    if BEGINS in pattern and not FLAGS.search(pattern):
        found = [_choice(alternative) for alternative in _alternatives(pattern)]
        if any(choice.unless for choice in found):
            return found
    return [Choice(pattern)]


def _alternatives(pattern: str) -> list[str]:
    """Split at each ``|`` outside of groups."""
    depth, begin, found = 0, 0, []
    for token in TOKEN.finditer(pattern):
        depth += (token[0] == "(") - (token[0] == ")")
        if token[0] == "|" and depth == 0:
            found.append(pattern[begin : token.start()])
            begin = token.end()
    return [*found, pattern[begin:]]


def _choice(text: str) -> Choice:
    before, unless = "", []
    while True:
        end = _end_of_group(text) if text.startswith(BEGINS) else None
        if text.startswith("^"):
            before, text = before + "^", text[1:]
        elif end is not None and not text.startswith(REPEATS, end):
            unless.append(f"{before}(?:{text[len(BEGINS) : end - 1]})(?s:.*)")
            text = text[end:]
        else:
            return Choice(before + text, tuple(unless))


def _end_of_group(text: str) -> int | None:
    """Return the end of the group with which ``text`` begins."""
    depth = 0
    for token in TOKEN.finditer(text):
        depth += (token[0] == "(") - (token[0] == ")")
        if depth == 0:
            return token.end()
    return None
