"""The engine's own logit processors, which the fields of SamplingParams stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.requests.dry import Dry
from infeng_core.requests.processors import Adjustment, LogitProcessor, Vocabulary
from infeng_core.requests.request import SamplingParams


class AllowedTokens:
    """Only the tokens listed may be drawn."""

    def __init__(self, vocabulary: Vocabulary, allowed: Sequence[int], prompt: Sequence[int]) -> None:
        """Allow the ids ``allowed``."""
        self._row = Adjustment(vocabulary.mask(allowed))

    def extend(self, tokens: Sequence[int]) -> None:
        """Every row is the same."""

    def row(self, guesses: Sequence[int]) -> Adjustment:
        """Return the mask."""
        return self._row


class LogitBias:
    """Adds to the logits of some tokens."""

    def __init__(self, vocabulary: Vocabulary, bias: Sequence[tuple[int, float]], prompt: Sequence[int]) -> None:
        """bias: (id, what is added)."""
        ids, values = zip(*bias, strict=True)
        self._row = Adjustment(ids=np.array(ids, np.int32), biases=np.array(values, np.float32))

    def extend(self, tokens: Sequence[int]) -> None:
        """Every row is the same."""

    def row(self, guesses: Sequence[int]) -> Adjustment:
        """Return the biases."""
        return self._row


class MinTokens:
    """No end token before there are enough tokens."""

    def __init__(self, vocabulary: Vocabulary, argument: tuple[int, Sequence[int]], prompt: Sequence[int]) -> None:
        """argument: how many tokens come before an end, and the ends."""
        self._left, ends = argument
        self._row = Adjustment(~vocabulary.mask(ends))

    def extend(self, tokens: Sequence[int]) -> None:
        """Count."""
        self._left -= len(tokens)

    def row(self, guesses: Sequence[int]) -> Adjustment | None:
        """Return the mask, or nothing once there are enough."""
        return self._row if len(guesses) < self._left else None


class BadWords:
    """The last token of a word may not follow the others, of which some may stand in the prompt."""

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
        """Return the mask of all tokens that end no word here."""
        last = (*self._last, *guesses)
        banned = frozenset(end for begin, end in self._words if last[len(last) - len(begin) :] == begin)
        if banned != self._banned:
            self._banned, self._row = banned, Adjustment(~self._vocabulary.mask(banned)) if banned else None
        return self._row


class Penalties:
    """Makes tokens less likely that were there before: docs/numerics.md, "Sampling"."""

    def __init__(self, vocabulary: Vocabulary, argument: tuple[float, float, float], prompt: Sequence[int]) -> None:
        """argument: repetition, for tokens of prompt and answer; presence and frequency, for those of the answer."""
        self._repetition, self._presence, self._frequency = (np.float32(value) for value in argument)
        seen = dict.fromkeys(prompt if self._repetition != 1 else ())
        self._places = {token: place for place, token in enumerate(seen)}  # of each token in the arrays
        self._ids = np.array([*seen], np.int32)
        self._counts = np.zeros(len(seen), np.int32)  # in the answer

    def extend(self, tokens: Sequence[int]) -> None:
        """Count."""
        self._places, self._ids, self._counts = self._with(tokens)

    def row(self, guesses: Sequence[int]) -> Adjustment | None:
        """Return the penalty of each token that was there."""
        _, ids, counts = self._with(guesses) if guesses else (None, self._ids, self._counts)
        drop = self._frequency * counts.astype(np.float32)
        drop[counts > 0] += self._presence
        return Adjustment(ids=ids, biases=-drop, penalties=np.full(len(ids), self._repetition))

    def _with(self, tokens: Sequence[int]) -> tuple[dict[int, int], NDArray[np.int32], NDArray[np.int32]]:
        """Return what is known once ``tokens`` have followed."""
        counted = Counter(tokens)
        new = [token for token in counted if token not in self._places]
        places = (
            self._places | {token: place for place, token in enumerate(new, len(self._places))} if new else self._places
        )
        ids = np.concatenate([self._ids, np.array(new, np.int32)]) if new else self._ids
        counts = np.concatenate([self._counts, np.zeros(len(new), np.int32)])
        for token, count in counted.items():
            counts[places[token]] += count
        return places, ids, counts


class BuiltinProcessors:
    """Makes one of them, as the hook wants it."""

    def __init__(
        self, kind: Callable[[Vocabulary, Any, Sequence[int]], LogitProcessor], vocabulary: Vocabulary
    ) -> None:
        """Make processors of ``kind``."""
        self._kind = kind
        self._vocabulary = vocabulary

    def make(self, argument: Any, prompt: Sequence[int]) -> LogitProcessor:
        """Return the processor of one request."""
        return self._kind(self._vocabulary, argument, prompt)


KINDS: dict[str, Callable[[Vocabulary, Any, Sequence[int]], LogitProcessor]] = {
    "allowed_token_ids": AllowedTokens,
    "bad_words": BadWords,
    "min_tokens": MinTokens,
    "logit_bias": LogitBias,
    "penalties": Penalties,
    "dry": Dry,
}
"""By the names that the hook gives them, in the order in which they act."""


def requested_processors(params: SamplingParams, ends: Collection[int]) -> list[tuple[str, Any]]:
    """Return the name and argument of each processor that ``params`` ask for, in the order in which they act.

    ends: the tokens that end the request's text.
    """
    penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    dry = (params.dry_multiplier, params.dry_base, params.dry_allowed_length, params.dry_penalty_last_n)
    asked: dict[str, Any] = {
        "allowed_token_ids": params.allowed_token_ids,
        "bad_words": params.bad_words_ids,
        "min_tokens": (params.min_tokens, tuple(ends)) if params.min_tokens and ends else None,
        "logit_bias": params.logit_bias,
        "penalties": penalties if penalties != (1.0, 0.0, 0.0) else None,
        "dry": (*dry, params.dry_sequence_breakers) if params.dry_multiplier and params.dry_penalty_last_n else None,
    }
    return [*((name, argument) for name, argument in asked.items() if argument), *params.processors]
