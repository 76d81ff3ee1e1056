"""The drafter of one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from infeng_suffix.store import Shelf, Store
from infeng_suffix.text import Text
from infeng_suffix.vote import Guess, Source, continuation

if TYPE_CHECKING:
    from infeng_core.api.engines import DraftedRequest

WINDOW = 1 << 15
"""The last tokens of a prompt that are searched."""


class SuffixDrafter:
    """Guesses that a text goes on as it did after the same tokens before: in itself, or in an earlier answer.

    It looks up at most ``most_tokens`` tokens in every step, learns from all of them, and returns as many as pay.
    """

    paces_itself = True
    most_tokens = 16

    def __init__(self, store: Store, prompt: Sequence[int]) -> None:
        """Start with the prompt, which is not read before the request runs."""
        self._store = store
        self._prompt: Sequence[int] = prompt
        self._shelf: Shelf | None = None
        self._text: Text | None = None
        self._answer = 0  # position of its first token
        self._guesses: list[Guess] = []
        self._source = Source()

    def begin(self, request: DraftedRequest) -> None:
        """Open the texts of the request's tenant, salt and adapters."""
        self._shelf = self._store.open(request)
        self._text = self._store.begin(self._prompt[-WINDOW:])
        self._answer, self._prompt = self._text.end, ()
        self._pays = request.pays

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the new tokens, and learn which guesses were right."""
        assert self._shelf is not None and self._text is not None
        for token, guess in zip(tokens, self._guesses, strict=False):
            self._shelf.chances.learn(guess.slot, token == guess.token)
            if token != guess.token:
                break
        self._guesses = []
        self._text.tokens.extend(tokens)
        self._store.extend(self._shelf, self._text)

    def draft(self, count: int) -> list[int]:
        """Return as many guesses as pay, at most ``count``."""
        assert self._shelf is not None and self._text is not None
        matches = self._shelf.index.matches(self._text)
        near = self._source.follow(self._text, matches, self._shelf.index)
        if not matches and near is None:
            return []
        chances = self._shelf.chances
        self._guesses = continuation(self._text, matches, chances, count, near)
        self._store.touch(self._shelf, (near or matches[0]).text)
        paying = self._pays([chances.of(guess.slot) for guess in self._guesses])
        return [guess.token for guess in self._guesses[:paying]]

    def end(self, tokens: Sequence[int]) -> None:
        """Keep the answer for later requests."""
        if self._shelf is None or self._text is None:
            return
        end = max(self._text.indexed, self._answer + len(tokens))  # a step may draw tokens past the end
        del self._text.tokens[end - self._text.first :]
        self._store.close(self._shelf, self._text, self._answer)
        self._shelf = self._text = None
