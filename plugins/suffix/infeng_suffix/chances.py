"""How often guesses are right, by the length of the match before them and by how far its places agree.

SuffixDecoding (Oliaro et al., arXiv 2411.04975) scores a continuation by its relative frequency among the places of a
match. A frequency says little where places are few, so here each kind of match has a rate that is learned from what
came next. Every token teaches, also where no guess ran: a wrong guess that was not run costs nothing.
"""

from __future__ import annotations

from bisect import bisect_right

LADDER = (3, 4, 5, 6, 8, 12, 16, 24, 32)
"""Lengths at which another rate begins."""

PRIOR = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.85, 0.9, 0.95)
"""Rates before anything was learned, by the length."""

ALONE, AGREED, MOST, FEW, NEAR = range(5)
"""One place; several that go on alike; at least ``MAJORITY`` of them do; fewer do; the place near the last match does
(``infeng_suffix.vote.Source``)."""

MAJORITY = 0.6

TRUST = (0.9, 1.0, 0.7, 0.4, 0.9)
"""Factor of the prior, by kind."""

WEIGHT = 4
"""Guesses for which a prior counts."""

MEMORY = 32
"""Guesses after which an old one counts little."""

_LENGTHS = len(LADDER) + 1


def kind_of(share: float, places: int) -> int:
    """Return the kind of a guess that a ``share`` of so many places makes."""
    if places == 1:
        return ALONE
    if share >= 1.0:
        return AGREED
    return MOST if share >= MAJORITY else FEW


class Chances:
    """The learned rates."""

    def __init__(self) -> None:
        """Start with the priors."""
        self._rates = [trust * rate for trust in TRUST for rate in PRIOR]
        self._counts = [WEIGHT] * len(self._rates)

    def slot(self, kind: int, length: int) -> int:
        """Return the number of a rate. length: of the match, with the guesses before this one."""
        return kind * _LENGTHS + bisect_right(LADDER, length)

    def of(self, slot: int) -> float:
        """Return how often such a guess was right lately."""
        return self._rates[slot]

    def learn(self, slot: int, is_right: bool) -> None:
        """Take whether a guess was right."""
        count = self._counts[slot]
        if count < MEMORY:
            self._counts[slot] = count = count + 1
        self._rates[slot] += (is_right - self._rates[slot]) / count
