"""The continuation on which the places of a match agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from infeng_suffix.chances import NEAR, Chances, kind_of
from infeng_suffix.index import DEPTH, LONG, Index, Match
from infeng_suffix.text import Text

LEAST = 0.08
"""Guesses end before one that is right, with all before it, less often than this."""


REACH = 8
"""Tokens to both sides of where a text would go on, in which its last token is searched."""

BONUS = 4
"""What the place near the last match counts more than its length."""


class Source:
    """The text that another follows: after a change, as in an edit, it goes on near where it was left."""

    def __init__(self) -> None:
        """Start without one."""
        self._match: Match | None = None
        self._end = 0  # of the following text at the match

    def follow(self, text: Text, matches: Sequence[Match], index: Index) -> Match | None:
        """Return the place near the last match with the same last token, if ``matches`` has none of ``LONG`` tokens."""
        best = max(matches, key=lambda match: match.length, default=None)
        if best is not None and best.length >= LONG:
            self._match, self._end = best, text.end
            return None
        if self._match is None or self._match.text.number not in index.texts:
            return None
        there, position, _ = self._match
        expected = position + text.end - self._end
        last = there.indexed if there is text else there.end - 1  # one must follow
        nearest = range(max(there.first, expected - REACH), min(expected + REACH + 1, last))
        near = max(
            (self._at(text, there, place) for place in nearest),
            key=lambda match: (match.length, -abs(match.position - expected)),
            default=None,
        )
        if near is None or near.length == 0:
            if text.end - self._end > REACH:
                self._match = None
            return None
        if near.length >= 2:
            self._match, self._end = near, text.end
        return near

    def _at(self, text: Text, there: Text, position: int) -> Match:
        ours, theirs = text.tokens, there.tokens
        at, end, length = position - there.first, len(ours) - 1, 0
        while length < min(DEPTH, at + 1, end + 1) and theirs[at - length] == ours[end - length]:
            length += 1
        return Match(there, position, length)


class Guess(NamedTuple):
    """A guessed token."""

    token: int
    slot: int
    """Of its rate in ``Chances``."""


def continuation(
    text: Text, matches: Sequence[Match], chances: Chances, most: int, near: Match | None = None
) -> list[Guess]:
    """Return up to ``most`` guesses of what follows ``text``. near: of its ``Source``.

    Each place votes for the token that follows it, with the length of its match; one that is less than half as long
    as the longest has no vote. The token with most votes is guessed, and places that go on otherwise leave. A place
    that reaches the text's own end goes on in the guesses.
    """
    longest = max((match.length for match in matches), default=0)
    voters: list[tuple[list[int], int]] = []  # what follows at each place, and its weight
    short: list[list[int]] = []  # those that go on in the guesses
    places = [match for match in matches if 2 * match.length > longest]
    if near is not None:
        longest = near.length
        places.insert(0, near._replace(length=near.length + BONUS))
    for there, position, length in places:
        begin = position + 1 - there.first
        following = there.tokens[begin : begin + most].tolist()
        voters.append((following, length))
        if there is text and len(following) < most:
            short.append(following)
    nearby = voters[0][0] if near is not None else []
    guesses: list[Guess] = []
    chance = 1.0
    for step in range(most):
        votes: dict[int, int] = {}
        for following, weight in voters:
            if step < len(following):
                votes[following[step]] = votes.get(following[step], 0) + weight
        if not votes:
            break
        token = max(votes, key=votes.__getitem__)
        if step < len(nearby) and nearby[step] == token:
            kind = NEAR
        else:
            nearby, kind = [], kind_of(votes[token] / sum(votes.values()), len(voters))
        slot = chances.slot(kind, longest + step)
        chance *= chances.of(slot)
        guesses.append(Guess(token, slot))
        if chance < LEAST:
            break
        if len(votes) > 1:
            voters = [voter for voter in voters if step < len(voter[0]) and voter[0][step] == token]
        for following in short:
            following.append(token)
    return guesses
