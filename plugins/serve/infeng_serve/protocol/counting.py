"""Counts the values of a JSON body before it is decoded: a value of two bytes becomes an object of 60.

numpy does the counting and releases the GIL, which a decoder holds until it is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_serve.protocol.errors import invalid

PIECE = 1 << 18
"""Bytes counted at a time: few enough for a core's cache."""

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]


class Counts(NamedTuple):
    """Counts of a body's parts."""

    values: int = 0
    """Commas and colons outside of texts, which bound the number of values."""
    texts: int = 0
    """Texts, including keys."""
    containers: int = 0
    """Arrays and objects."""

    def __add__(self, other: object) -> Counts:
        """Return the sum of both."""
        assert isinstance(other, Counts)
        return Counts(*(one + more for one, more in zip(self, other, strict=True)))

    def over(self, most: Counts) -> str:
        """Return the name of the first field above ``most``; "" if none is."""
        return next((name for name in self._fields if getattr(self, name) > getattr(most, name)), "")


MOST = Counts(values=1 << 20, texts=1 << 17, containers=1 << 16)
"""Bounds on one body: ten times what a batch of prompts as token ids, or the tools of a large agent, need."""

_WORDS = {"values": "values", "texts": "texts and keys", "containers": "arrays and objects"}


def check(body: bytes, most: Counts = MOST) -> None:
    """Raise ApiError 400 for a body with more than ``most``; takes 1 to 6 ms a MB and stops once it is certain."""
    if len(body) <= min(most):
        return
    data = np.frombuffer(body, np.uint8)
    if not _total(_everywhere(data), most).over(most):
        return  # few enough even with commas within texts
    if name := _total(_outside(data), most).over(most):
        why = f"the body has more than {getattr(most, name)} {_WORDS[name]}: send it in several calls"
        raise invalid(None, why, "body_too_complex")


def _total(pieces: Iterator[Counts], most: Counts) -> Counts:
    """Return the sum of counts, up to the first that is above ``most``."""
    found = Counts()
    for counts in pieces:
        found += counts
        if found.over(most):
            break
    return found


def _everywhere(data: Bytes) -> Iterator[Counts]:
    """Yield the counts of pieces including the insides of texts: fast, and an upper bound."""
    for begin in range(0, len(data), PIECE):
        piece = data[begin : begin + PIECE]
        yield Counts(_count(piece, b",:"), _count(piece, b'"') // 2, _count(piece, b"[{"))


def _outside(data: Bytes) -> Iterator[Counts]:
    """Yield the exact counts of pieces, without the insides of texts."""
    is_inside = is_escaped = False  # state at the beginning of a piece
    for begin in range(0, len(data), PIECE):
        piece = data[begin : begin + PIECE]
        quotes, is_escaped = _quotes(piece, is_escaped)
        at = np.flatnonzero(quotes)
        if len(at):
            lengths = np.diff(at, prepend=0, append=len(piece))
            inside = np.repeat((np.arange(len(lengths)) & 1).astype(np.bool_) ^ is_inside, lengths)
            outside, is_inside = piece[~inside], is_inside ^ bool(len(at) & 1)
        else:
            outside = piece[:0] if is_inside else piece
        yield Counts(_count(outside, b",:"), len(at) // 2, _count(outside, b"[{"))


def _quotes(piece: Bytes, is_escaped: bool) -> tuple[Flags, bool]:
    """Return which bytes begin or end a text, and whether the byte after the piece is escaped.

    is_escaped: whether the first byte is. In a run of backslashes every second one is escaped itself.
    """
    quotes, slashes = piece == ord('"'), piece == ord("\\")
    if is_escaped:
        quotes[0] = slashes[0] = False
    if not (slashes[1:] & slashes[:-1]).any():
        quotes[1:] &= ~slashes[:-1]
        return quotes, bool(slashes[-1])
    at = np.flatnonzero(slashes)
    gaps = np.flatnonzero(np.diff(at) > 1)
    first, last = at[np.append(0, gaps + 1)], at[np.append(gaps, len(at) - 1)]
    escaped = last[(last - first) % 2 == 0] + 1
    is_next = bool(len(escaped)) and int(escaped[-1]) == len(piece)
    quotes[escaped[:-1] if is_next else escaped] = False
    return quotes, is_next


def _count(piece: Bytes, letters: bytes) -> int:
    return sum(int(np.count_nonzero(piece == letter)) for letter in letters)
