"""The text of one request: its tokens, and the part of them that an index has."""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class Text:
    """The tokens of one request from position ``first`` on; those in [first, indexed) are in an index.

    The beginning of a text may be dropped (``Index.trim``), so positions are counted from its first token ever.
    """

    __slots__ = ("first", "indexed", "is_full", "number", "tokens")

    def __init__(self, number: int, tokens: Iterable[int]) -> None:
        """Start with ``tokens``, none of them indexed. number: unique in an index."""
        self.number = number
        self.tokens = array("i", tokens)
        self.first = 0
        self.indexed = 0
        self.is_full = False
        """Whether there was no memory for more of it; then nothing more is indexed."""

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.first + len(self.tokens)

    @property
    def held(self) -> int:
        """Tokens that are indexed."""
        return self.indexed - self.first
