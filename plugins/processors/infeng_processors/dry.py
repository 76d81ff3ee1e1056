"""DRY: tokens that would continue a repetition become less likely, more so the longer the repetition is.

p-e-w, "DRY: A modern repetition penalty that reliably prevents looping", pull request 5677 of text-generation-webui
(2024); ``DRYLogitsProcessor`` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import Adjustment, InfengError, RequestError, Tokenizer, Vocabulary

LONGEST = 50
"""Most tokens of a match, as in the author's code: it bounds penalties and the search."""


class Matches(NamedTuple):
    """Earlier occurrences of a text's newest token, and how many tokens before each equal those before the newest."""

    ends: NDArray[np.intp]  # (matches,) places in the text, ascending
    lengths: NDArray[np.uint8]  # (matches,) up to LONGEST


NO_MATCHES = Matches(np.empty(0, np.intp), np.empty(0, np.uint8))


class Dry:
    """Follows a text and its matches: a new token lengthens the matches that it continues, and ends the others.

    Each token therefore costs one comparison with each earlier token.
    """

    def __init__(
        self, vocabulary: Vocabulary, argument: tuple[float, float, int, int, Sequence[str]], prompt: Sequence[int]
    ) -> None:
        """argument: multiplier, base, allowed length, number of last tokens to search or -1, sequence breakers.

        Raises RequestError for breakers that the tokenizer cannot encode.
        """
        multiplier, base, self._allowed, self._last_n, breakers = argument
        self._breakers = breaker_ids(vocabulary.tokenizer, breakers)
        self._breaker_ids = np.array(sorted(self._breakers), np.int32)
        self._penalties = penalties(multiplier, base, self._allowed)
        self._text = np.empty(0, np.int32)
        self._scratch = np.zeros(1, np.uint8)  # by place, and one that stays 0: before the first
        self._length = 0
        self._matches = NO_MATCHES
        self._guessed: tuple[tuple[int, ...], Matches] = ((), NO_MATCHES)
        self.extend(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        """Take tokens of the text."""
        self._matches = self._followed(self._matches, self._length, tokens)
        self._length += len(tokens)
        self._guessed = ((), self._matches)

    def row(self, guesses: Sequence[int]) -> Adjustment | None:
        """Return the penalty of each token that followed a match: the longest match's."""
        ends, lengths = self._behind(tuple(guesses))
        lengths = np.minimum(lengths, ends - self._first(self._length + len(guesses)) + 1)
        long = lengths >= self._allowed
        ends, lengths = ends[long], lengths[long]
        following = self._text[ends + 1]
        counts = ~np.isin(following, self._breaker_ids)
        if not counts.any():
            return None
        ids, which = np.unique(following[counts], return_inverse=True)
        longest = np.zeros(len(ids), np.intp)
        np.maximum.at(longest, which, lengths[counts])
        return Adjustment(ids=ids, biases=-self._penalties[longest])

    def _behind(self, guesses: tuple[int, ...]) -> Matches:
        """Return the matches after ``guesses``, which are mostly those of the previous row and one more."""
        known, matches = self._guessed
        if guesses[: len(known)] != known:
            known, matches = (), self._matches
        matches = self._followed(matches, self._length + len(known), guesses[len(known) :])
        self._guessed = guesses, matches
        return matches

    def _followed(self, matches: Matches, begin: int, tokens: Sequence[int]) -> Matches:
        """Return the matches after ``tokens`` have followed the first ``begin`` tokens, whose matches are
        ``matches``."""
        end = begin + len(tokens)
        if end > len(self._text):
            self._text = np.concatenate([self._text[:begin], np.empty(2 * end - begin, np.int32)])
            self._scratch = np.zeros(len(self._text) + 1, np.uint8)
        self._text[begin:end] = tokens
        if len(tokens) >= LONGEST:  # no match is older
            begin, matches = end - LONGEST, NO_MATCHES
        for place in range(begin, end):
            matches = self._after(matches, place)
        return matches

    def _after(self, matches: Matches, place: int) -> Matches:
        """Return the matches of the token at ``place``; ``matches`` are those of the previous token."""
        token = self._text[place]
        if int(token) in self._breakers:
            return NO_MATCHES
        first = self._first(place + 1)
        ends = np.flatnonzero(self._text[first:place] == token) + first
        self._scratch[matches.ends] = matches.lengths
        lengths = np.minimum(self._scratch[ends - 1] + np.uint8(1), np.uint8(LONGEST))
        self._scratch[matches.ends] = 0
        return Matches(ends, lengths)

    def _first(self, length: int) -> int:
        """Return the first place that is searched in a text of ``length`` tokens."""
        return 0 if self._last_n < 0 else max(0, length - self._last_n)


def penalties(multiplier: float, base: float, allowed: int) -> NDArray[np.float32]:
    """Return (LONGEST + 1,) the penalty of each match length: multiplier * base^(length - allowed).

    Products of float32 numbers, one after the other in double, each rounded to float32 at the end; 0 below
    ``allowed``.
    """
    found = np.zeros(LONGEST + 1)
    penalty = float(np.float32(multiplier))
    for length in range(allowed, LONGEST + 1):
        found[length] = penalty
        penalty = min(penalty * float(np.float32(base)), float(np.finfo(np.float32).max))
    return found.astype(np.float32)


def breaker_ids(tokenizer: Tokenizer, breakers: Sequence[str]) -> frozenset[int]:
    """Return the last token of each breaker inside a text: the last token of "a" and the breaker."""
    if not breakers:
        return frozenset()
    try:
        encoded = tokenizer.encode([f"a{breaker}" for breaker in breakers])
    except InfengError as error:
        remedy = "give (), or texts that the tokenizer can encode"
        raise RequestError("dry_sequence_breakers", f"they cannot be encoded ({error.why})", remedy) from error
    return frozenset(ids[-1] for ids in encoded if ids)
