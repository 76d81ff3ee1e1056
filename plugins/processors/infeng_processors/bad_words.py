"""Bad words, as ids of their tokens."""

from __future__ import annotations

from collections.abc import Sequence

from infeng_core.api import Adjustment, Vocabulary


class BadWords:
    """Forbids the last token of a word after its other tokens, some of which may be in the prompt."""

    def __init__(self, vocabulary: Vocabulary, words: Sequence[Sequence[int]], prompt: Sequence[int]) -> None:
        """words: ids of each."""
        self._vocabulary = vocabulary
        self._words = [(tuple(word[:-1]), word[-1]) for word in words]
        self._memory = max(len(begin) for begin, _ in self._words)
        self._last: tuple[int, ...] = ()
        self._banned: frozenset[int] = frozenset()
        self._row: Adjustment | None = None  # for those
        self.extend(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        """Keep the last tokens."""
        self._last = (*self._last, *tokens)[-self._memory :] if self._memory else ()

    def row(self, guesses: Sequence[int]) -> Adjustment | None:
        """Return the mask without the tokens that would complete a word."""
        last = (*self._last, *guesses)
        banned = frozenset(end for begin, end in self._words if last[len(last) - len(begin) :] == begin)
        if banned != self._banned:
            self._banned, self._row = banned, Adjustment(~self._vocabulary.mask(banned)) if banned else None
        return self._row
