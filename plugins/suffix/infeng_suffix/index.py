"""Where the last tokens of a text occurred before: an index of texts by their grams of 2 and of 8 tokens.

A gram's key is a hash, and a key has the latest ``PLACES`` places at which it ends. A look-up takes the places of the
longer gram, or if there is none, of the shorter one, and compares backwards up to ``DEPTH`` tokens: the result of a
suffix tree of that depth, with the latest places of a suffix in the place of all. So a token costs two dictionary
entries, a look-up a bounded number of comparisons, and old text is dropped from its beginning, token by token.
"""

from __future__ import annotations

from secrets import randbits
from typing import NamedTuple

import numpy as np

from infeng_suffix.text import Text

SHORT, LONG = 2, 8
"""Tokens of the two grams."""

PLACES = 8
"""Places of a gram that are kept."""

DEPTH = 32
"""Most tokens that are compared."""

MANY = 24
"""Grams from which on their keys are computed as an array."""


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
        self._places: dict[int, int | list[int]] = {}  # a gram's key: number of the text << 32 | position of its end
        self._factor = randbits(64) | 1  # secret, so that no prompt can be made whose grams have one key

    def add(self, text: Text, count: int) -> None:
        """Index the next ``count`` tokens of a text, each of which must be followed by another."""
        self.texts[text.number] = text
        places, code = self._places, text.number << 32
        for size in (SHORT, LONG):
            begin, keys = self._keys(text, size, text.indexed, text.indexed + count)
            for place, key in enumerate(keys, code | begin):
                found = places.get(key)
                if found is None:
                    places[key] = place
                elif isinstance(found, int):
                    places[key] = [found, place]
                else:
                    found.append(place)
                    if len(found) > PLACES:
                        del found[0]
        text.indexed += count

    def trim(self, text: Text, count: int) -> None:
        """Drop the first ``count`` tokens of a text, and the text with its last indexed one."""
        places, code, first = self._places, text.number << 32, text.first + count
        for size in (SHORT, LONG):  # a gram goes with its first token
            begin, keys = self._keys(text, size, text.first, min(first + size - 1, text.indexed))
            for place, key in enumerate(keys, code | begin):
                found = places.get(key)
                if found == place:
                    del places[key]
                elif isinstance(found, list) and place in found:
                    found.remove(place)
                    if len(found) == 1:
                        places[key] = found[0]
        del text.tokens[:count]
        text.first = first
        if text.first >= text.indexed:
            self.texts.pop(text.number, None)

    def matches(self, text: Text) -> list[Match]:
        """Return the places where the last tokens of ``text`` occurred, the latest first; none with fewer than 2."""
        for size in (LONG, SHORT):
            _, keys = self._keys(text, size, text.end - 1, text.end)
            found = self._places.get(keys[0]) if keys else None
            if found is None:
                continue
            places = [found] if isinstance(found, int) else reversed(found)
            matches = [self._match(place, text) for place in places]
            if longer := [match for match in matches if match is not None and match.length >= size]:
                return longer
        return []

    def _match(self, place: int, text: Text) -> Match | None:
        """Return a place as a match; None for one that Ctrl-C between two lines of ``trim`` or ``add`` has left."""
        there, position = self.texts.get(place >> 32), place & 0xFFFFFFFF
        if there is None or not there.first <= position < there.indexed:
            return None
        ours, theirs = text.tokens, there.tokens
        at, last = position - there.first, len(ours) - 1
        most = min(DEPTH, at + 1, last + 1)
        length = 0
        while length < most and theirs[at - length] == ours[last - length]:
            length += 1
        return Match(there, position, length)

    def _keys(self, text: Text, size: int, begin: int, end: int) -> tuple[int, list[int]]:
        """Return the keys of the grams that end at positions from ``begin``, or from the text's first gram on, to
        ``end``, and the position of the first.

        A key is the polynomial of a gram's size and tokens in the secret factor, modulo 2^64. Without the size, short
        and long grams of token 0 would have the same key.
        """
        begin = max(begin, text.first + size - 1)
        count = end - begin
        if count <= 0:
            return begin, []
        low = begin - text.first - size + 1
        tokens = text.tokens[low : low + count + size - 1]
        if count >= MANY:
            values = np.array(tokens, np.uint64)
            keys = np.full(count, size, np.uint64)
            for step in range(size):
                keys = keys * np.uint64(self._factor) + values[step : step + count]
            return begin, keys.tolist()
        found = []
        for start in range(count):
            key = size
            for token in tokens[start : start + size]:
                key = key * self._factor + token & 0xFFFFFFFFFFFFFFFF
            found.append(key)
        return begin, found
