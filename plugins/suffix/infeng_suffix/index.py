"""Where the last tokens of a text occurred before: an index of texts by their grams of 3 and of 8 tokens.

A gram's key is a hash, and a key has the latest ``PLACES`` places at which it ends. A look-up takes the places of the
longer gram, or if there is none, of the shorter one, and compares backwards up to ``DEPTH`` tokens: the result of a
suffix tree of that depth, with the latest places of a suffix in the place of all. So a token costs two dictionary
entries, a look-up a bounded number of comparisons, and old text is dropped from its beginning, token by token.
"""

from __future__ import annotations

from collections.abc import Iterator
from secrets import randbits
from typing import NamedTuple

from infeng_suffix.text import Text

SHORT, LONG = 3, 8
"""Tokens of the two grams."""

PLACES = 8
"""Places of a gram that are kept."""

DEPTH = 32
"""Most tokens that are compared."""


class Match(NamedTuple):
    """A place whose last tokens are those of a text."""

    text: Text
    position: int
    """Of the token that is equal to the text's last one."""
    length: int
    """Equal tokens up to there, at most ``DEPTH``."""


class Index:
    """The texts of one tenant with the same adapters and salt."""

    def __init__(self) -> None:
        """Start without texts."""
        self.texts: dict[int, Text] = {}
        self._places: dict[int, int | list[int]] = {}  # a gram's hash: number of the text << 32 | position of its end
        self._secret = randbits(61)  # no prompt can be made whose grams collide

    def add(self, text: Text, count: int) -> None:
        """Index the next ``count`` tokens of a text, each of which must be followed by another."""
        self.texts[text.number] = text
        code = text.number << 32
        for key, position in self._keys(text, text.indexed, text.indexed + count):
            self._put(key, code | position)
        text.indexed += count

    def trim(self, text: Text, count: int) -> None:
        """Drop the first ``count`` tokens of a text, and the text with its last indexed one."""
        code, first = text.number << 32, text.first + count
        for size in (SHORT, LONG):  # a gram goes with its first token
            begin, end = text.first + size - 1, min(first + size - 1, text.indexed)
            for key, position in self._keys(text, begin, end, (size,)):
                self._drop(key, code | position)
        del text.tokens[:count]
        text.first = first
        if text.first >= text.indexed:
            self.texts.pop(text.number, None)

    def matches(self, text: Text) -> list[Match]:
        """Return the places where the last tokens of ``text`` occurred, the latest first; none with fewer than 3."""
        tokens = text.tokens
        for size in (LONG, SHORT):
            if len(tokens) < size:
                continue
            found = self._places.get(hash((self._secret, *tokens[-size:])))
            if found is None:
                continue
            places = [found] if isinstance(found, int) else reversed(found)
            matches = [self._match(place, text) for place in places]
            if longer := [match for match in matches if match.length >= size]:
                return longer
        return []

    def _match(self, place: int, text: Text) -> Match:
        there, position = self.texts[place >> 32], place & 0xFFFFFFFF
        ours, theirs = text.tokens, there.tokens
        at, last = position - there.first, len(ours) - 1
        most = min(DEPTH, at + 1, last + 1)
        length = 0
        while length < most and theirs[at - length] == ours[last - length]:
            length += 1
        return Match(there, position, length)

    def _keys(
        self, text: Text, begin: int, end: int, sizes: tuple[int, ...] = (SHORT, LONG)
    ) -> Iterator[tuple[int, int]]:
        """Yield (key, position) of the grams that end at positions [begin, end)."""
        tokens, first, secret = text.tokens, text.first, self._secret
        for size in sizes:
            for stop in range(max(begin - first + 1, size), end - first + 1):
                yield hash((secret, *tokens[stop - size : stop])), first + stop - 1

    def _put(self, key: int, place: int) -> None:
        found = self._places.get(key)
        if found is None:
            self._places[key] = place
        elif isinstance(found, int):
            self._places[key] = [found, place]
        else:
            found.append(place)
            if len(found) > PLACES:
                del found[0]

    def _drop(self, key: int, place: int) -> None:
        found = self._places.get(key)
        if found == place:
            del self._places[key]
        elif isinstance(found, list) and place in found:
            found.remove(place)
            if len(found) == 1:
                self._places[key] = found[0]
