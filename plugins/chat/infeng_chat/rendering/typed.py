"""Protection against special tokens typed in messages: finds the parts of a rendered prompt that come from messages.

A text that spells a special token is put between two markers, private-use characters that occur nowhere else in this
rendering, inside of its leading and trailing blanks so that a template may trim it. If the markers change the
template's output, the spelled tokens are instead replaced by private-use characters, one for each character. This
second rendering also shows how many special tokens are the template's own.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PRIVATE = range(0xF0000, 0x10FFFE)
"""Planes 15 and 16, except the last two code points of each, which are not characters."""
MOST_TEXTS = 8192
"""Most texts with special tokens in one prompt."""

Change = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a prompt."""

    text: str
    is_typed: bool
    """Whether the part comes from a message, so that its special tokens stay text."""


class Spelled:
    """Finds special tokens in texts."""

    def __init__(self, special: Collection[str] | None, parses: Callable[[str], bool]) -> None:
        """special: texts of the special tokens, None if the tokenizer does not list them.

        parses: returns whether the tokenizer finds a special token in a text; used if ``special`` is None.
        """
        self._special = frozenset(text for text in special or () if text)
        self._parses = parses if special is None else None
        self._lengths = {len(text) for text in self._special}
        letters = {text[0] for text in self._special}
        self._first = re.compile("|".join(map(re.escape, letters)) or "(?!)")
        self._starts = {text[:length] for text in self._special for length in range(1, len(text))}
        self._longest = max(self._lengths, default=0)
        self._folded = [text.casefold() for text in self._special]

    def is_in(self, text: str) -> bool:
        """Return whether ``text`` contains a special token or ends with the beginning of one."""
        if self._parses is not None:
            return self._parses(text)
        if self.find(text) or self._begun(text):
            return True
        if text.isascii():
            return False
        normal = unicodedata.normalize("NFKC", text).casefold()  # tokenizers may normalize before they match
        return any(special in normal for special in self._folded)

    def find(self, text: str) -> list[tuple[int, int]]:
        """Return the first and the last index of each special token in ``text``, not overlapping."""
        found: list[tuple[int, int]] = []
        at = 0
        while (first := self._first.search(text, at)) is not None:
            begin = first.start()
            length = max((len(piece) for piece in self._pieces(text, begin) if piece in self._special), default=0)
            at = begin + (length or 1)
            if length:
                found.append((begin, at))
        return found

    def hidden(self, text: str) -> list[tuple[int, int]]:
        """Return the same, and the beginning of one at the end of the text."""
        found = self.find(text)
        end = len(text.rstrip())
        begun = self._begun(text)
        return [*found, (end - begun, end)] if begun and (not found or found[-1][1] <= end - begun) else found

    def count(self, texts: Iterable[str]) -> Counter[str]:
        """Return the number of each special token in texts."""
        return Counter(text[begin:end] for text in texts for begin, end in self.find(text))

    def _pieces(self, text: str, begin: int) -> Iterable[str]:
        return (text[begin : begin + length] for length in self._lengths)

    def _begun(self, text: str) -> int:
        """Return the number of last characters, without trailing blanks, that begin a special token."""
        end = text[-self._longest - 64 :].rstrip()
        most = min(self._longest, len(end))
        return next((length for length in range(most, 0, -1) if end[-length:] in self._starts), 0)


class Marking:
    """The markers of one rendering."""

    def __init__(self, taken: Iterable[str], spelled: Spelled) -> None:
        """Use only characters that do not occur in the texts ``taken``."""
        self._spelled = spelled
        self._taken = {ord(letter) for text in taken for letter in text if ord(letter) >= PRIVATE.start}
        self._random = random.SystemRandom()
        self._texts: list[str] = []  # between the markers 2 i and 2 i + 1
        self._markers: list[str] = []
        self._masked: dict[str, str] = {}  # private-use character -> the text that it replaces

    def mark(self, text: str) -> str:
        """Return ``text``, between markers if it may spell a special token."""
        core = text.strip()
        if not core or len(self._texts) >= MOST_TEXTS or not self._spelled.is_in(text):
            return text
        begin = text.index(core)
        first, last = self._fresh(), self._fresh()
        self._texts.append(core)
        self._markers += [first, last]
        return f"{text[:begin]}{first}{core}{last}{text[begin + len(core) :]}"

    def mask(self, text: str) -> str:
        """Return ``text`` with the characters of special tokens replaced by private-use characters."""
        pieces, at = [], 0
        for begin, end in self._spelled.hidden(text):
            letters = [self._fresh() for _ in range(begin, end)]
            self._masked |= dict(zip(letters, text[begin:end], strict=True))
            pieces += [text[at:begin], *letters]
            at = end
        return "".join([*pieces, text[at:]])

    def marked(self, rendered: str) -> list[Piece]:
        """Return the pieces of a text rendered from marked ones."""
        if not self._markers:
            return [Piece(rendered, False)]
        which = {marker: index for index, marker in enumerate(self._markers)}
        parts = re.split(f"([{''.join(self._markers)}])", rendered)
        pieces: list[Piece] = []
        inside: int | None = None
        for part, marker in zip(parts[::2], [*parts[1::2], None], strict=True):
            index = None if marker is None else which[marker]
            closes = index is not None and index % 2 == 1
            if inside is not None and closes and index == inside + 1:
                pieces.append(Piece(part, True))
            else:  # a template that cut a text removed one marker: the matching part on either side is typed text
                head = 0 if inside is None else _shared(part, self._texts[inside // 2])
                tail = 0
                if closes and index is not None:
                    tail = _shared(part[head:][::-1], self._texts[index // 2][::-1])
                middle = len(part) - tail
                pieces += [Piece(part[:head], True), Piece(part[head:middle], False), Piece(part[middle:], True)]
            inside = None if index is None or closes else index
        return joined(pieces)

    def unmasked(self, rendered: str) -> list[Piece]:
        """Return the pieces of a text rendered from masked ones."""
        if not self._masked:
            return [Piece(rendered, False)]
        parts = re.split(f"([{''.join(self._masked)}]+)", rendered)
        typed = ["".join(map(self._masked.__getitem__, part)) for part in parts[1::2]]
        pieces = [Piece(part, False) for part in parts]
        pieces[1::2] = [Piece(part, True) for part in typed]
        return joined(pieces)

    def _fresh(self) -> str:
        while True:
            code = self._random.randrange(PRIVATE.start, PRIVATE.stop)
            if code not in self._taken and code & 0xFFFE != 0xFFFE:
                self._taken.add(code)
                return chr(code)


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Return pieces with adjacent ones of a kind merged and empty ones dropped."""
    found: list[Piece] = []
    for piece in pieces:
        if found and found[-1].is_typed == piece.is_typed:
            found[-1] = Piece(found[-1].text + piece.text, piece.is_typed)
        elif piece.text:
            found.append(piece)
    return found


def texts_of(value: Any) -> Iterable[str]:
    """Yield every text in JSON data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from texts_of(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from texts_of(item)


def changed(value: Any, change: Change) -> Any:
    """Return JSON data with every text changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): changed(item, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [changed(item, change) for item in value]
    return value


def _shared(text: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    most = min(len(text), len(other))
    return next((index for index in range(most) if text[index] != other[index]), most)
