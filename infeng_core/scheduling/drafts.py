"""Guesses of the next tokens, which run in a step as extra rows and cost only time if they are wrong.

A step draws a token for every guessed row too. A guess counts only if it equals the token drawn in the row before it,
so a request's tokens do not depend on guessing: docs/decisions.md, "A guess is right if it is what would have been
drawn".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from infeng_core.errors import UsageError
from infeng_core.log import get_logger

_log = get_logger(__name__)

MOST_ROWS = 64
"""Guessed rows of one step, of all sequences together: with more, a step is bound by arithmetic and guesses do not
pay."""

LONGEST_WAIT = 32
"""Most tokens that a sequence with only wrong guesses goes without new ones."""


class Drafter(Protocol):
    """Guesses the continuation of one sequence. A wrong guess costs time; it never changes a text.

    A drafter is made for each request from the ids of its prompt. Factories are registered by name through the hook
    ``infeng_drafters``.
    """

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the new tokens of the sequence."""

    def draft(self, count: int) -> list[int]:
        """Return up to ``count`` guesses of the next tokens."""


class Ngrams:
    """Repeats the tokens that followed an earlier occurrence of the last tokens in the same sequence (prompt lookup).

    Positions that end in the same two tokens are chained from the newest to the oldest, as in LZ77 compressors: a
    token costs one dictionary entry, a look-up walks at most ``PLACES`` of the chain. The longest match wins, the
    newest among equals. A match that reaches the sequence's end continues in the copied tokens.
    """

    PLACES = 24
    LONGEST = 12
    """Tokens to compare; a match of this length is good enough."""

    def __init__(self, tokens: Sequence[int]) -> None:
        """Start with the prompt."""
        self._tokens: list[int] = []
        self._newest: dict[int, int] = {}  # two tokens as one integer -> index of the second at their latest occurrence
        self._older: list[int] = []  # by index: the previous occurrence of the same two tokens, or -1
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the new tokens of the sequence."""
        known, newest, older = self._tokens, self._newest, self._older
        before = known[-1] if known else -1  # -1 is no token: its pair is never looked up
        for index, token in enumerate(tokens, len(known)):
            pair = before << 32 | token
            older.append(newest.get(pair, -1))
            newest[pair] = index
            before = token
        known.extend(tokens)

    def draft(self, count: int) -> list[int]:
        """Return ``count`` guesses, or none if the last two tokens are new."""
        tokens, older = self._tokens, self._older
        last = len(tokens) - 1
        best, place, length = -1, older[last], 1
        for _ in range(self.PLACES):
            if place < 1 or length == self.LONGEST:
                break
            same = 2
            while same < self.LONGEST and same <= place and tokens[place - same] == tokens[last - same]:
                same += 1
            if same > length:
                best, length = place, same
            place = older[place]
        if best < 0:
            return []
        copied = tokens[best + 1 : best + 1 + count]
        while len(copied) < count:
            copied += copied[: count - len(copied)]
        return copied


class Guesses:
    """The guesses of one sequence, and how many it may make.

    A draft has at most one token more than the previous draft had right, and at most ``most``. After a draft that was
    entirely wrong the sequence waits for 1, 2, 4, ... ``LONGEST_WAIT`` tokens, twice as long each time, until a guess
    is right.
    """

    def __init__(self, drafter: Drafter, most: int, vocab: int = 1 << 31) -> None:
        """Ask ``drafter`` for at most ``most`` tokens at a time; ids from ``vocab`` on are invalid."""
        self._drafter = drafter
        self._vocab = vocab
        self._most = most
        self._width = most
        self._penalty = 1
        self._wait = 0
        self._is_broken = False
        self.draft: list[int] = []
        """Guesses of the next tokens, the nearest first."""

    def follow(self, new: Sequence[int], drafted: int) -> None:
        """Take the ``new`` tokens of a step in which ``drafted`` guesses ran, and guess again.

        If the drafter fails, its sequence continues without guesses.
        """
        self.draft = []
        if self._is_broken:
            return
        self._wait = max(0, self._wait - len(new))
        self._learn(drafted, len(new) - 1)
        try:
            self._drafter.extend(new)
            draft = [] if self._wait else list(self._drafter.draft(self._width))
            if draft and 0 <= min(draft) <= max(draft) < self._vocab:
                self.draft = draft
        except Exception as error:
            self._is_broken = True
            _log.warning("a drafter failed", error=f"{type(error).__name__}: {error}")

    def _learn(self, drafted: int, right: int) -> None:
        if drafted == 0:
            return
        whole = right == drafted
        self._width = min(self._most, max(self._width, right + 1) if whole else right + 1)
        if right:
            self._penalty = 1
        else:
            self._wait = self._penalty
            self._penalty = min(2 * self._penalty, LONGEST_WAIT)


def parse(text: str | None) -> dict[str, object]:
    """Return the settings of ``ngram`` or ``ngram:K``, by their dotted names; raises UsageError."""
    if text is None:
        return {}
    name, colon, count = text.partition(":")
    if not colon:
        return {"speculation.use": name}
    if not (count.isascii() and count.isdigit()):
        raise UsageError(f"speculate {text}", f"{count!r} is not a number of tokens", "say ngram, or ngram:4")
    return {"speculation.use": name, "speculation.tokens": int(count)}
