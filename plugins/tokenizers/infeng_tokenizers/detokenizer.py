"""Streaming detokenization: tokens become text as soon as it is certain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Protocol

REPLACEMENT = "\ufffd"
"""The character in a decoded text for bytes that are not, or not yet, a character."""

CONTEXT_TOKENS = 8
"""Tokens of the prompt before a completion's first token that are decoded with it."""


class Decoder(Protocol):
    """The methods of a tokenizer that the detokenizer uses."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens`` without special tokens."""

    def text(self, token: int) -> str | None:
        """Return the text of ``token`` alone; None if decoding ignores it: special or unknown."""

    def special_text(self, token: int) -> str:
        """Return how a special token is spelled; "" for any other."""

    def is_byte(self, token: int) -> bool:
        """Return whether ``token`` is one raw byte of a run that only decodes as a whole (SentencePiece fallback)."""


class StreamingDetokenizer:
    """Decodes a short window of tokens again with each new one, and returns the text that the window gained.

    For a prompt P and new tokens T the pieces together are ``decode(P + T)`` without the part it shares with
    ``decode(P)``: a completion after "Once upon" starts with the space, one after the beginning of text does not.
    Nothing is returned while the text ends in an incomplete character. A run of SentencePiece's byte tokens waits for
    its end, because ``decode`` turns the whole run into replacement characters if any part of it is broken. Special
    tokens do not take part; unless they are skipped, they are spelled between the pieces.
    """

    def __init__(self, tokenizer: Decoder, prompt: Sequence[int], skip_special_tokens: bool = True) -> None:
        """Decode the tokens after ``prompt``."""
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._window = _safe_tail(tokenizer, prompt)  # only visible tokens: decoding ignores the rest
        self._given = len(self._window)  # tokens of the window whose text was returned
        self._text = tokenizer.decode(self._window)  # their text

    def push(self, token: int) -> str:
        """Take the next token and return the text that is now certain."""
        tokenizer = self._tokenizer
        alone = tokenizer.text(token)
        if alone is None:
            return "" if self._skips else self._spelled(token)
        self._window.append(token)
        if tokenizer.is_byte(token):
            return ""
        text = tokenizer.decode(self._window)
        if text.endswith(REPLACEMENT):
            return ""
        piece = text[_shared(text, self._text) :]
        # The newest tokens stay as context: a decoder may treat a text's first token differently.
        self._window = self._window[self._given :]
        self._given = len(self._window)
        self._text = alone if self._given == 1 else tokenizer.decode(self._window)
        return piece

    def finish(self) -> str:
        """Return the text held back, with replacement characters for incomplete characters."""
        text = self._tokenizer.decode(self._window)
        piece = text[_shared(text, self._text) :]
        self._text = text
        return piece

    def _spelled(self, token: int) -> str:
        """Return the text of a special token, after the text held back for a character that it cuts off."""
        text = self._tokenizer.special_text(token)
        if not text or len(self._window) == self._given:
            return text
        piece = self.finish()
        self._given = len(self._window)  # the returned text is fixed: the next token is decoded after it
        return piece + text


def _safe_tail(tokenizer: Decoder, prompt: Sequence[int]) -> list[int]:
    """Return the last visible tokens of ``prompt``, starting where neither a character nor a byte run is cut."""
    tail: list[int] = []
    for token in reversed(prompt):
        if tokenizer.text(token) is not None:
            tail.insert(0, token)
            is_long = len(tail) >= CONTEXT_TOKENS
            if is_long and not tokenizer.is_byte(token) and not tokenizer.decode(tail).startswith(REPLACEMENT):
                break
    return tail


def _shared(text: str, before: str) -> int:
    """Return the length of the common beginning of two texts."""
    if text.startswith(before):
        return len(before)
    return next(i for i, pair in enumerate(zip_longest(text, before)) if pair[0] != pair[1])
