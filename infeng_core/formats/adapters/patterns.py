"""Regular expressions of strangers, matched in bounded time.

An adapter's configuration names modules by regular expressions. Python's ``re`` backtracks, so that a short pattern
such as ``(a*)*b`` keeps the whole process busy for hours. Here a pattern is parsed by ``re`` and matched by sets: where
may a match of this part end, if it begins here? Each part is asked once for each position, so the time is at most the
pattern's length times the square of the text's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from re import _constants as op  # type: ignore[attr-defined]  # the parser's names; there is no public parse tree
from re import _parser  # type: ignore[attr-defined]
from typing import Any

MAX_LENGTH = 4096  # of a pattern
MAX_TEXT = 512
CHARACTERS = (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)
REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT)  # greedy or lazy: the set of matches is the same
LOOKS = (op.ASSERT, op.ASSERT_NOT)  # (?=...) and (?!...)
TRIVIAL = re.compile(r"[\w.\-^$\\]*", re.ASCII)  # no repeats, no choices: nothing to backtrack over


class PatternError(ValueError):
    """A pattern that is no regular expression, or uses what cannot be matched in bounded time."""


def fullmatch(pattern: str, text: str, start: int = 0) -> bool:
    """Return whether all of ``text`` from ``start`` on matches, as ``re.Pattern.fullmatch``; raises PatternError."""
    compiled = _compile(pattern)
    if isinstance(compiled, re.Pattern):
        return compiled.fullmatch(text, start) is not None
    try:
        return len(text) in _Matcher(text).ends(compiled, start)
    except RecursionError:
        raise PatternError("is nested too deeply") from None


def matches_end(pattern: str, name: str) -> bool:
    """Return whether the pattern matches the last segments of a dotted name, one or more: ``(.*\\.)?(pattern)$``."""
    return any(fullmatch(pattern, name, start) for start in (0, *(dot.end() for dot in re.finditer(r"\.", name))))


@lru_cache(maxsize=4096)
def _compile(pattern: str) -> Any:
    """Return a compiled pattern where that is safe, else its parse tree."""
    if len(pattern) > MAX_LENGTH:
        raise PatternError(f"has {len(pattern)} characters, it may have {MAX_LENGTH}")
    try:
        if TRIVIAL.fullmatch(pattern):
            return re.compile(pattern)
        tree = _parser.parse(pattern)
        _check(tree)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(f"is no regular expression ({error})") from None
    if tree.state.flags & ~re.UNICODE:
        raise PatternError("sets flags, which names of modules do not need")
    return tree


def _check(tree: Any) -> None:
    """Raise PatternError for a part that the matcher does not know: references, conditions, looks behind."""
    for code, argument in tree:
        if code is op.SUBPATTERN and not (argument[1] or argument[2]):  # no flags of its own
            _check(argument[3])
        elif code is op.BRANCH:
            for branch in argument[1]:
                _check(branch)
        elif code in REPEATS:
            _check(argument[2])
        elif code in LOOKS and argument[0] == 1:  # ahead
            _check(argument[1])
        elif code not in CHARACTERS and code is not op.AT:
            raise PatternError(f"uses {str(code).lower()}, which is not supported here")


class _Matcher:
    """Matches parse trees at positions of one text; results are kept by (part, position)."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_TEXT:
            raise PatternError(f"is to match a name of {len(text)} characters")
        self.text = text
        self.known: dict[tuple[int, int], frozenset[int]] = {}

    def ends(self, tree: Any, start: int) -> frozenset[int]:
        """Return where matches of ``tree`` that begin at ``start`` end."""
        key = (id(tree), start)
        if key not in self.known:
            positions = frozenset((start,))
            for node in tree:
                positions = self._union(positions, partial(self._step, *node))
                if not positions:
                    break
            self.known[key] = positions
        return self.known[key]

    @staticmethod
    def _union(starts: Iterable[int], step: Callable[[int], Iterable[int]]) -> frozenset[int]:
        return frozenset(end for start in starts for end in step(start))

    def _step(self, code: Any, argument: Any, at: int) -> Iterable[int]:
        """Return where a match of one node that begins at ``at`` ends."""
        if code in CHARACTERS:
            return (at + 1,) if at < len(self.text) and _accepts(code, argument, self.text[at]) else ()
        if code is op.SUBPATTERN:
            return self.ends(argument[3], at)
        if code is op.BRANCH:
            return frozenset(end for tree in argument[1] for end in self.ends(tree, at))
        if code in REPEATS:
            return self._repeat(argument[0], argument[1], argument[2], at)
        if code is op.AT:
            return (at,) if self._is_at(argument, at) else ()
        return (at,) if bool(self.ends(argument[1], at)) == (code is op.ASSERT) else ()

    def _repeat(self, low: int, high: int, tree: Any, at: int) -> frozenset[int]:
        reached = frozenset((at,))
        for _ in range(min(low, len(self.text) + 1)):  # after so many rounds only empty matches are left
            reached = self._union(reached, lambda start: self.ends(tree, start))
        found, rounds = reached, low
        while reached and rounds < high:
            reached = self._union(reached, lambda start: self.ends(tree, start)) - found
            found |= reached
            rounds += 1
        return found

    def _is_at(self, place: Any, at: int) -> bool:
        size = len(self.text)
        if place in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            return at == 0
        if place is op.AT_END:
            return at == size or (at == size - 1 and self.text[at] == "\n")
        if place is op.AT_END_STRING:
            return at == size
        before = at > 0 and _is_word(self.text[at - 1])
        after = at < size and _is_word(self.text[at])
        return (before != after) == (place is op.AT_BOUNDARY)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


CATEGORIES: dict[Any, Callable[[str], bool]] = {
    op.CATEGORY_DIGIT: str.isdecimal,
    op.CATEGORY_NOT_DIGIT: lambda character: not character.isdecimal(),
    op.CATEGORY_SPACE: str.isspace,
    op.CATEGORY_NOT_SPACE: lambda character: not character.isspace(),
    op.CATEGORY_WORD: _is_word,
    op.CATEGORY_NOT_WORD: lambda character: not _is_word(character),
}


def _accepts(code: Any, argument: Any, character: str) -> bool:
    """Return whether a node that takes one character takes this one."""
    if code is op.LITERAL:
        return bool(ord(character) == argument)
    if code is op.NOT_LITERAL:
        return bool(ord(character) != argument)
    if code is op.ANY:
        return character != "\n"
    if code is op.RANGE:
        return bool(argument[0] <= ord(character) <= argument[1])
    if code is op.CATEGORY:
        return CATEGORIES[argument](character)
    negated = argument[0][0] is op.NEGATE
    return any(_accepts(kind, value, character) for kind, value in argument[negated:]) != negated
