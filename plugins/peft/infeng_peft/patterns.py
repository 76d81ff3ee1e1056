"""Regular expressions from untrusted files, matched in linear time.

An adapter's configuration names modules by regular expressions. Python's ``re`` backtracks, so that a short pattern
such as ``(a*)*b`` keeps the whole process busy for hours; RE2 reads a name once, whatever the pattern. PEFT's
patterns may also contain lookarounds and backreferences. These are refused with an error, except negative lookaheads
at the beginning (lookaheads.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple, NoReturn

import re2

from infeng_peft.lookaheads import choices

MAX_LENGTH = 4096  # of a pattern
MAX_COUNT = 4096  # of a field: one for each module of the largest models
MAX_CHARACTERS = 1 << 17  # of all patterns of a field
PROGRAM_MEMORY = 1 << 20  # of states active at a time: about 10,000, a millisecond for 10 names
MATCH_MEMORY = 32 << 20  # of the matcher's cache

SINGLE = re.compile(r"[\w.\-^$\\]*", re.ASCII)  # no repeats, no choices: one active state, however many such patterns
ABSENT = {
    "(?=": "a lookahead",
    "(?!": "a negative lookahead that is not at the beginning",
    "(?<=": "a lookbehind",
    "(?<!": "a negative lookbehind",
    "(?>": "an atomic group",
    "(?(": "a condition",
    "(?P": "a backreference",
    "(?#": "a comment",
    **{f"{operator}+": "a possessive repeat" for operator in ("*", "+", "?", "}")},
    **{f"\\{digit}": "a backreference" for digit in range(1, 10)},
}
# Syntax that RE2 reads differently from Python: \10 for an octal number, {,3} for text, [:alpha:] for a class.
OTHERWISE = re.compile(r"\\[1-9]|\{,(?=\d*\})|\[:|\\.", re.DOTALL)


Refuse = Callable[[str, str], NoReturn]
"""Raises for a pattern and a reason, which continues the sentence "holds <pattern>, which ..."."""


Sets = list[tuple[re2.Set, list[int]]]  # each with the indices of its pieces


class Piece(NamedTuple):
    """A part of a pattern for RE2: one of its alternatives, or an exclusion of one."""

    text: str
    place: int
    """Of the pattern."""
    unless: frozenset[int] | None
    """The indices of the exclusions of this piece; None: it is an exclusion itself."""


def _pieces(patterns: Sequence[str]) -> list[Piece]:
    made: list[Piece] = []
    for place, pattern in enumerate(patterns):
        for text, unless in choices(pattern):
            made += [Piece(one, place, None) for one in unless]
            made.append(Piece(text, place, frozenset(range(len(made) - len(unless), len(made)))))
    return made


class Patterns:
    """The patterns of one field; a name is compared with all of them at once."""

    def __init__(self, patterns: Sequence[str], refuse: Refuse) -> None:
        """Compile; calls ``refuse`` for an invalid regular expression and for one that needs more than linear time."""
        self._refuse = refuse
        if len(patterns) > MAX_COUNT or sum(map(len, patterns)) > MAX_CHARACTERS:
            limit = f"{MAX_COUNT} are possible, of {MAX_CHARACTERS} characters together"
            refuse(patterns[0], f"is one of {len(patterns)} patterns: {limit}")
        for pattern in patterns:
            self._check(pattern)
        self._patterns = patterns
        self._pieces = _pieces(patterns)
        self._single = [index for index, piece in enumerate(self._pieces) if SINGLE.fullmatch(piece.text)]
        self._others = sorted({*range(len(self._pieces))} - {*self._single})
        self._compiled(self._others, PROGRAM_MEMORY)
        self._whole = self._sets()

    def fullmatch(self, text: str) -> int | None:
        """Return the index of the first pattern that matches all of ``text``, as ``re.fullmatch``, or None."""
        return self._first(self._whole, text)

    def matches_end(self, name: str) -> int | None:
        """Return the index of the first that matches the last segments of a dotted name: ``(.*\\.)?(pattern)$``."""
        ends = [self._first(self._after_dot, name[dot.start() :]) for dot in re.finditer(r"\.", name)]
        return min((place for place in (self.fullmatch(name), *ends) if place is not None), default=None)

    @cached_property
    def _after_dot(self) -> Sets:
        return self._sets(r"\.(?:", ")")  # ^ does not match there

    def _sets(self, before: str = "", after: str = "") -> Sets:
        groups = [pieces for pieces in (self._single, self._others) if pieces]
        return [(self._compiled(pieces, MATCH_MEMORY, before, after), pieces) for pieces in groups]

    def _first(self, sets: Sets, text: str) -> int | None:
        matching: set[int] = set()
        for compiled, pieces in sets:
            found = compiled.Match(text) or []
            if len(pieces) not in found:  # the last pattern matches everything, unless RE2 ran out of memory
                self._refuse(text, "cannot be compared with the patterns in the memory that they may take")
            matching.update(pieces[index] for index in found if index < len(pieces))
        whole = [piece for piece in map(self._pieces.__getitem__, matching) if piece.unless is not None]
        return min((piece.place for piece in whole if matching.isdisjoint(piece.unless or ())), default=None)

    def _check(self, pattern: str) -> None:
        if len(pattern) > MAX_LENGTH:
            self._refuse(pattern, f"has {len(pattern)} characters, it may have {MAX_LENGTH}")
        for token in OTHERWISE.findall(pattern):
            if token in ABSENT:
                self._refuse(pattern, _absent(token))
            if not token.startswith("\\"):
                self._refuse(pattern, f"uses {token}, which is not supported here")

    def _compiled(self, pieces: list[int], memory: int, before: str = "", after: str = "") -> re2.Set:
        """Return a set of ``pieces`` and, last, a pattern that matches everything."""
        options = re2.Options()
        options.log_errors, options.never_capture, options.max_mem = False, True, memory
        made = re2.Set.FullMatchSet(options)
        for text, place, _ in (self._pieces[index] for index in pieces):
            try:
                made.Add(f"{before}{text}{after}")
            except (re2.error, UnicodeEncodeError):
                self._refuse(self._patterns[place], _reason(text, options))
        made.Add("(?s).*")
        try:
            made.Compile()
        except re2.error:
            longest = max((self._pieces[index] for index in pieces), key=lambda piece: len(piece.text))
            self._refuse(self._patterns[longest.place], "takes too many states, alone or with the others")
        return made


def _reason(pattern: str, options: re2.Options) -> str:
    """Return why RE2 refuses a pattern."""
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0].decode(errors="replace")
        token = said.rpartition(": ")[2]
        return _absent(token) if token in ABSENT else f"is no regular expression ({said})"
    except UnicodeEncodeError:
        return "is not Unicode"
    return "is not accepted"


def _absent(token: str) -> str:
    return f"uses {ABSENT[token]} ({token}), which cannot be matched in linear time"
