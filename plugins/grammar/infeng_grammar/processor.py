"""The logit processor ``grammar``: a bitset of the allowed tokens for each row."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from infeng_core.api import Adjustment, LogitProcessor, RequestError, Vocabulary
from infeng_grammar.after import DONE, Waiting
from infeng_grammar.argument import Wanted, read
from infeng_grammar.budget import Budget
from infeng_grammar.compiled import Cache, Compiled, compile_grammar, tidy
from infeng_grammar.tokens import Tokens

MOST_GRAMMARS = 64
MOST_AFTERS = 16


class Grammars:
    """Makes the processors of one engine."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Defer reading the tokenizer to the first request."""
        self._vocabulary = vocabulary
        self._tokens: Tokens | None = None
        self._lock = threading.Lock()
        self._compiled: Cache[Compiled] = Cache(MOST_GRAMMARS)
        self._afters: Cache[Waiting] = Cache(MOST_AFTERS)

    def make(self, argument: Any, prompt: Sequence[int]) -> LogitProcessor:
        """Return the processor of one request; raises RequestError for an invalid argument."""
        wanted, after = read(argument)
        tokens = self._known()
        compiled = self._compiled.get(wanted, lambda: compile_grammar(tokens.library, wanted))
        waiting = self._afters.get(after, lambda: Waiting(after, tokens)) if after else None
        return Grammar(wanted, tokens, compiled, waiting)

    def _known(self) -> Tokens:
        with self._lock:
            if self._tokens is None:
                self._tokens = Tokens(self._vocabulary)
            return self._tokens


class Place(NamedTuple):
    """A request's position, apart from its matcher's state."""

    waiting: int
    """State of the automaton for ``after``; DONE once the grammar applies."""
    ended: bool = False


class Grammar:
    """Follows one request. It may be ahead of it by guessed tokens, and rolls back those that were not accepted."""

    def __init__(self, wanted: Wanted, tokens: Tokens, compiled: Compiled, waiting: Waiting | None) -> None:
        """Start before the first token of the answer."""
        self._wanted = wanted
        self._tokens = tokens
        self._compiled = compiled
        self._waiting = waiting
        self._matcher = compiled.take()
        self._budget = Budget(self._what)
        self._place = Place(DONE if waiting is None else 0)
        self._ahead: list[tuple[int, Place]] = []  # guessed tokens consumed so far, each with the place before it
        bits = np.zeros(-(-tokens.size // 32), np.uint32)
        self._bits = bits  # llguidance writes masks here
        self._pointer, self._nbytes = bits.ctypes.data, bits.nbytes
        self._row = Adjustment(bits[: len(tokens.end_mask)])
        self._end_row = Adjustment(tokens.end_mask)

    def __del__(self) -> None:
        """Return the matcher for reuse."""
        if matcher := getattr(self, "_matcher", None):
            self._compiled.give_back(matcher)

    def extend(self, tokens: Sequence[int]) -> None:
        """Consume the request's new tokens."""
        self._budget.earn(len(tokens))
        with self._budget:
            self._go(tokens)
            self._ahead.clear()

    def row(self, guesses: Sequence[int]) -> Adjustment:
        """Return the mask of the tokens that may follow the request's tokens and ``guesses``."""
        with self._budget:
            self._go(guesses)
            if self._place.ended:
                return self._end_row
            if self._waiting is not None and self._place.waiting != DONE:
                return self._waiting.rows[self._place.waiting]
            return self._mask()

    def forced(self) -> list[int]:
        """Return the next tokens as far as the grammar allows only one at each position."""
        with self._budget:
            self._go(())
            return self._matcher.compute_ff_tokens() if self._place == Place(DONE) else []

    def _mask(self) -> Adjustment:
        """Return the mask that the grammar gives at the matcher's position."""
        self._matcher.unsafe_compute_mask_ptr(self._pointer, self._nbytes)
        self._check()
        row, ends = self._row.allowed, self._tokens.end_mask
        assert row is not None
        np.bitwise_and(row, self._tokens.text_mask, out=row)
        if self._matcher.is_accepting():
            np.bitwise_or(row, ends, out=row)
        return self._row

    def _go(self, guesses: Sequence[int]) -> None:
        """Move to the position after the request's tokens and ``guesses``."""
        ahead, same = self._ahead, 0
        while same < min(len(ahead), len(guesses)) and ahead[same][0] == guesses[same]:
            same += 1
        self._go_back(same)
        for token in guesses[same:]:
            before = self._place
            ahead.append((token, before))
            self._place = self._behind(before, token)

    def _behind(self, place: Place, token: int) -> Place:
        if place.ended:
            return place
        if self._waiting is not None and place.waiting != DONE:
            return Place(self._waiting.next(place.waiting, token))
        if token in self._tokens.ends:
            return Place(DONE, ended=True)
        if not self._matcher.consume_token(token):
            self._check()
            raise RequestError(self._what, f"token {token} does not follow in it", "submit the request again")
        return place

    def _go_back(self, count: int) -> None:
        """Roll back to the position after the first ``count`` guesses."""
        left = self._ahead[count:]
        if not left:
            return
        del self._ahead[count:]
        ends = self._tokens.ends
        taken = sum(place == Place(DONE) and token not in ends for token, place in left)
        self._place = left[0][1]
        if taken and not self._matcher.rollback(taken):
            self._check()
            raise RequestError(self._what, "its matcher cannot roll back", "run it without speculation")

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(self._what, tidy(self._matcher.get_error()), "make it simpler")

    @property
    def _what(self) -> str:
        return f"grammar {self._wanted.kind}"
