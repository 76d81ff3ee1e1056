"""The engine's own logit processors, selected by fields of SamplingParams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.requests.processors import Adjustment, LogitProcessor, Vocabulary
from infeng_core.requests.request import SamplingParams


class AllowedTokens:
    """Only the tokens listed may be drawn."""

    def __init__(self, vocabulary: Vocabulary, allowed: Sequence[int], prompt: Sequence[int]) -> None:
        """Allow the ids ``allowed``."""
        self._row = Adjustment(vocabulary.mask(allowed))

    def extend(self, tokens: Sequence[int]) -> None:
        """Do nothing: every row is the same."""

    def row(self, guesses: Sequence[int]) -> Adjustment:
        """Return the mask."""
        return self._row


class LogitBias:
    """Adds to the logits of some tokens."""

    def __init__(self, vocabulary: Vocabulary, bias: Sequence[tuple[int, float]], prompt: Sequence[int]) -> None:
        """bias: (id, addend)."""
        ids, values = zip(*bias, strict=True)
        self._row = Adjustment(ids=np.array(ids, np.int32), biases=np.array(values, np.float32))

    def extend(self, tokens: Sequence[int]) -> None:
        """Do nothing: every row is the same."""

    def row(self, guesses: Sequence[int]) -> Adjustment:
        """Return the biases."""
        return self._row


class MinTokens:
    """Forbids end tokens before a minimum number of tokens."""

    def __init__(self, vocabulary: Vocabulary, argument: tuple[int, Sequence[int]], prompt: Sequence[int]) -> None:
        """argument: the minimum number of tokens, and the end tokens."""
        self._left, ends = argument
        self._row = Adjustment(~vocabulary.mask(ends))

    def extend(self, tokens: Sequence[int]) -> None:
        """Count the tokens."""
        self._left -= len(tokens)

    def row(self, guesses: Sequence[int]) -> Adjustment | None:
        """Return the mask, or nothing after the minimum."""
        return self._row if len(guesses) < self._left else None


class Penalties:
    """Makes tokens that occurred before less likely: docs/numerics.md, "Sampling"."""

    def __init__(self, vocabulary: Vocabulary, argument: tuple[float, float, float], prompt: Sequence[int]) -> None:
        """argument: repetition, for tokens of prompt and answer; presence and frequency, for those of the answer."""
        self._repetition, self._presence, self._frequency = (np.float32(value) for value in argument)
        seen = dict.fromkeys(prompt if self._repetition != 1 else ())
        self._places = {token: place for place, token in enumerate(seen)}  # index of each token in the arrays
        self._ids = np.array([*seen], np.int32)
        self._counts = np.zeros(len(seen), np.int32)  # in the answer

    def extend(self, tokens: Sequence[int]) -> None:
        """Count the tokens."""
        self._places, self._ids, self._counts = self._with(tokens)

    def row(self, guesses: Sequence[int]) -> Adjustment | None:
        """Return the penalty of each token that occurred."""
        _, ids, counts = self._with(guesses) if guesses else (None, self._ids, self._counts)
        drop = self._frequency * counts.astype(np.float32)
        drop[counts > 0] += self._presence
        return Adjustment(ids=ids, biases=-drop, penalties=np.full(len(ids), self._repetition))

    def _with(self, tokens: Sequence[int]) -> tuple[dict[int, int], NDArray[np.int32], NDArray[np.int32]]:
        """Return the state after ``tokens`` have followed."""
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
    """Adapts a kind of processor to the hook."""

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
    "min_tokens": MinTokens,
    "logit_bias": LogitBias,
    "penalties": Penalties,
}
"""By name; the others that fields select are a wheel's."""


def requested_processors(params: SamplingParams, ends: Collection[int]) -> list[tuple[str, Any]]:
    """Return the name and argument of each processor that ``params`` select, in the order in which they act.

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
