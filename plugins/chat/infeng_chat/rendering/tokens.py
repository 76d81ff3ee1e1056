"""Tokenization of a prompt's pieces."""

from __future__ import annotations

from collections.abc import Sequence

from infeng_chat.rendering.typed import Piece
from infeng_core.api import RequestError, Tokenizer

_ANCHORS = ("\n", "a", "0", ")", " ")
"""Put before a piece within the prompt, so that the tokenizer treats it as the middle of a text."""


class Tokens:
    """A tokenizer for prompts in pieces."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Determine the tokens that the tokenizer puts around a text."""
        self._tokenizer = tokenizer
        [empty] = tokenizer.encode([""], parse_special=True)
        self._head = 1 if tokenizer.bos_id is not None and empty[:1] == [tokenizer.bos_id] else 0
        self._tail = len(empty) - self._head
        try:
            anchors = tokenizer.encode(_ANCHORS, parse_special=True)
        except RequestError:  # a tokenizer that does not take text: rendering a prompt raises the error
            anchors = []
        self._anchors = [(text, self._without_tail(ids)) for text, ids in zip(_ANCHORS, anchors, strict=False)]

    def of(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        """Return the ids of a prompt, with at most one beginning-of-text token before the template's text.

        Without typed pieces they are the ids of the whole text.
        """
        if len(pieces) == 1 and not pieces[0].is_typed:
            return tuple(self._without_tail(self._encode([pieces[0].text], True)[0]))
        ids: list[int] = []
        for piece in pieces:
            ids += self._within(piece) if ids else self._first(piece)
        return tuple(ids)

    def single(self, text: str) -> int | None:
        """Return the special token that ``text`` is, or None."""
        if not self._anchors:
            return None
        [ids] = self._encode([text], True)
        ids = self._without_tail(ids)[self._head :] or self._without_tail(ids)
        return ids[0] if len(ids) == 1 and self.is_special(ids[0]) else None

    def first_special(self, text: str) -> int | None:
        """Return the first special token in ``text``, or None."""
        for token in self._within(Piece(text, False)) if self._anchors else ():
            if self.is_special(token):
                return token
        return None

    def is_special(self, token: int) -> bool:
        """Return whether a token has no text of its own."""
        return self._tokenizer.decode([token]) == ""

    def parses(self, text: str) -> bool:
        """Return whether the tokenizer finds special tokens in ``text``."""
        return self._encode([text], True) != self._encode([text], False)

    def _first(self, piece: Piece) -> list[int]:
        return self._without_tail(self._encode([piece.text], not piece.is_typed)[0])

    def _within(self, piece: Piece) -> list[int]:
        """Return the ids of a piece within the prompt, without a beginning-of-text token and the space that it adds."""
        for anchor, before in self._anchors:
            [ids] = self._encode([anchor + piece.text], not piece.is_typed)
            ids = self._without_tail(ids)
            if ids[: len(before)] == before and len(ids) > len(before):
                return ids[len(before) :]
        return self._first(piece)[self._head :]

    def _encode(self, texts: Sequence[str], special: bool) -> list[list[int]]:
        return self._tokenizer.encode(texts, parse_special=special)

    def _without_tail(self, ids: list[int]) -> list[int]:
        """Return ids without the end-of-text token that the tokenizer may append to every text."""
        return ids[: len(ids) - self._tail] if self._tail > 0 else ids
