"""The drafter ``ngram``: guesses from the text of one request alone."""

from __future__ import annotations

from collections.abc import Sequence


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
