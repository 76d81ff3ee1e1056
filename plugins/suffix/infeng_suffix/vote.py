"""The continuation on which the places of a match agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from infeng_suffix.chances import Chances, kind_of
from infeng_suffix.index import Match
from infeng_suffix.text import Text

LEAST = 0.05
"""Guesses end before one that is right, with all before it, less often than this."""


class Guess(NamedTuple):
    """A guessed token."""

    token: int
    slot: int
    """Of its rate in ``Chances``."""


def continuation(text: Text, matches: Sequence[Match], chances: Chances, most: int) -> list[Guess]:
    """Return up to ``most`` guesses of what follows ``text``.

    Each place votes for the token that follows it, with the length of its match; one that is less than half as long
    as the longest has no vote. The token with most votes is guessed, and places that go on otherwise leave. A place
    that reaches the text's own end goes on in the guesses.
    """
    longest = max((match.length for match in matches), default=0)
    voters = [match for match in matches if 2 * match.length > longest]
    own = text.tokens
    cursors = [(match.text.tokens, match.position - match.text.first + 1, match.length) for match in voters]
    guesses: list[Guess] = []
    chance = 1.0
    while cursors and len(guesses) < most:
        step = len(guesses)
        votes: dict[int, int] = {}
        following: list[int] = []
        for tokens, at, weight in cursors:
            at += step
            if at < len(tokens):
                token = tokens[at]
            elif tokens is own and at - len(tokens) < step:
                token = guesses[at - len(tokens)].token
            else:
                token = -1  # the end of another text
            following.append(token)
            if token >= 0:
                votes[token] = votes.get(token, 0) + weight
        if not votes:
            break
        token = max(votes, key=votes.__getitem__)
        kind = kind_of(votes[token] / sum(votes.values()), len(cursors))
        slot = chances.slot(kind, longest + step)
        chance *= chances.of(slot)
        guesses.append(Guess(token, slot))
        if chance < LEAST:
            break
        if len(votes) > 1 or -1 in following:
            cursors = [cursor for cursor, next_ in zip(cursors, following, strict=True) if next_ == token]
    return guesses
