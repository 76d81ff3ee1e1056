"""Pieces of a prompt to token ids."""

from __future__ import annotations

from collections.abc import Sequence

from infeng_chat.rendering.typed import Piece
from infeng_core.api import RequestError, Tokenizer

_ANCHORS = ("\n", "a", "0", ")", " ")
"""Before a piece that does not begin the prompt, so that the tokenizer treats it as the middle of a text."""


class Tokens:
    """A tokenizer, as prompts need it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Look at what the tokenizer puts around a text."""
        self._tokenizer = tokenizer
        [empty] = tokenizer.encode([""], parse_special=True)
        self._head = 1 if tokenizer.bos_id is not None and empty[:1] == [tokenizer.bos_id] else 0
        self._tail = len(empty) - self._head
        try:
            anchors = tokenizer.encode(_ANCHORS, parse_special=True)
        except RequestError:  # a tokenizer of something else than text: prompts will say so
            anchors = []
        self._anchors = [(text, self._without_tail(ids)) for text, ids in zip(_ANCHORS, anchors, strict=False)]

    def of(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        """Return the ids of a prompt, with one beginning-of-text token at most before what the template writes.

        Where no piece was typed they are those of the whole text.
        """
        if len(pieces) == 1 and not pieces[0].is_typed:
            return tuple(self._without_tail(self._encode([pieces[0].text], True)[0]))
        ids: list[int] = []
        for piece in pieces:
            ids += self._within(piece) if ids else self._first(piece)
        return tuple(ids)

    def single(self, text: str) -> int | None:
        """Return the token that ``text`` is, if it is a special one."""
        if not self._anchors:
            return None
        [ids] = self._encode([text], True)
        ids = self._without_tail(ids)[self._head :] or self._without_tail(ids)
        return ids[0] if len(ids) == 1 and self.is_special(ids[0]) else None

    def first_special(self, text: str) -> int | None:
        """Return the first special token that ``text`` spells."""
        for token in self._within(Piece(text, False)) if self._anchors else ():
            if self.is_special(token):
                return token
        return None

    def is_special(self, token: int) -> bool:
        """Return whether a token has no text of its own."""
        return self._tokenizer.decode([token]) == ""

    def parses(self, text: str) -> bool:
        """Return whether special tokens are found in ``text``."""
        return self._encode([text], True) != self._encode([text], False)

    def _first(self, piece: Piece) -> list[int]:
        return self._without_tail(self._encode([piece.text], not piece.is_typed)[0])

    def _within(self, piece: Piece) -> list[int]:
        """Return the ids of a piece that others precede: no beginning of text, and no space that belongs to one."""
        for anchor, before in self._anchors:
            [ids] = self._encode([anchor + piece.text], not piece.is_typed)
            ids = self._without_tail(ids)
            if ids[: len(before)] == before and len(ids) > len(before):
                return ids[len(before) :]
        return self._first(piece)[self._head :]

    def _encode(self, texts: Sequence[str], special: bool) -> list[list[int]]:
        return self._tokenizer.encode(texts, parse_special=special)

    def _without_tail(self, ids: list[int]) -> list[int]:
        """Return ids without an end-of-text token that the tokenizer puts behind every text."""
        return ids[: len(ids) - self._tail] if self._tail > 0 else ids
