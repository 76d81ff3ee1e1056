"""Guesses of the next tokens, which run in a step as extra rows and cost only time if they are wrong.

A step draws a token for every guessed row too. A guess counts only if it equals the token drawn in the row before it,
so a request's tokens do not depend on guessing: docs/decisions.md, "A guess is right if it is what would have been
drawn".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from infeng_core.errors import PluginError, UsageError, printable
from infeng_core.log import get_logger

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = get_logger(__name__)

MOST_ROWS = 64
"""Guessed rows of one step, of all sequences together: with more, a step is bound by arithmetic and guesses do not
pay."""

MOST_TOKENS = 16
"""Guessed tokens of one sequence in a step."""

LONGEST_WAIT = 32
"""Most tokens that a sequence with only wrong guesses goes without new ones."""


FEW_TOKENS = 4
"""Most guessed tokens of a sequence in a step, for ``speculation.tokens: auto`` and a drafter that says nothing."""


class Drafter(Protocol):
    """Guesses the continuation of one sequence. A wrong guess costs time; it never changes a text.

    A drafter is made for each request from the ids of its prompt. Factories are registered by name through the hook
    ``infeng_drafters``. The hook is called once for each engine, so what its drafters share belongs to that engine.

    A drafter may have further methods. ``begin(request: DraftedRequest)`` comes before the first other call, as soon
    as the request runs. ``see(position: int, states)`` gets the final norm's output, (rows, hidden) float32, of
    positions from ``position`` on, each before the ``extend`` with the token that was drawn there; positions found in
    the cache are left out, and after a repeated step the same come again. Only engines whose drafters have ``see``
    compute states. ``end(tokens)`` is the last call, with all tokens of the answer, however it ended.

    It may also have attributes. If ``paces_itself`` is true, ``draft`` is asked in every step for as many tokens as
    allowed; otherwise it is asked for fewer after wrong guesses. ``most_tokens`` is the most of a step where
    ``speculation.tokens`` is ``auto``, from 1 to 16; 4 without it.
    """

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the new tokens of the sequence."""

    def draft(self, count: int) -> list[int]:
        """Return up to ``count`` guesses of the next tokens."""


@dataclass(frozen=True, slots=True)
class DraftedRequest:
    """The request of a drafter. What one tenant's request has shown must not reach another's, not even by its time."""

    tenant: str
    cache_salt: str
    adapters: tuple[tuple[str, float], ...]
    """(content id, weight) of each adapter that acts on it, in the request's order."""
    pays: Callable[[Sequence[float]], int]
    """Returns how many guesses of this request to run in the next step, so that tokens come fastest. Its argument is
    the chance that each guess is right if all before it are."""


class Guesses:
    """The guesses of one sequence, and how many it may make.

    A draft has at most one token more than the previous draft had right, and at most ``most``. After a draft that was
    entirely wrong the sequence waits for 1, 2, 4, ... ``LONGEST_WAIT`` tokens, twice as long each time, until a guess
    is right. A drafter that paces itself has neither limit. If a drafter fails, its sequence continues without guesses.
    """

    def __init__(
        self,
        drafter: Drafter,
        most: int | None,
        vocab: int = 1 << 31,
        request: Callable[[], DraftedRequest] | None = None,
    ) -> None:
        """Ask ``drafter`` for at most ``most`` tokens at a time; ids from ``vocab`` on are invalid.

        most: None leaves it to the drafter. request: called once, when the request runs. Raises PluginError if the
        drafter asks for more than ``MOST_TOKENS``.
        """
        self._drafter: Drafter | None = drafter
        self._vocab = vocab
        self._begin = getattr(drafter, "begin", None) if request is not None else None
        self._see = getattr(drafter, "see", None)
        self._request = request
        self._paces_itself = bool(getattr(drafter, "paces_itself", False))
        self._most = _most_of(drafter) if most is None else most
        self._width = self._most
        self._penalty = 1
        self._wait = 0
        self._has_begun = False
        self._drawn: tuple[int, NDArray[np.float32]] | None = None  # states whose next tokens are being drawn
        self.draft: list[int] = []
        """Guesses of the next tokens, the nearest first."""

    @property
    def sees(self) -> bool:
        """Whether the drafter wants hidden states."""
        return self._see is not None

    def see(self, position: int, states: NDArray[np.float32], drawn: int) -> None:
        """Take the states, (rows, hidden), of a step's rows from ``position`` on.

        drawn: how many of the last rows a token is drawn from; the drafter sees as many of these as ``follow`` takes.
        """
        known = len(states) - drawn
        self._drawn = (position + known, states[known:].copy()) if drawn else None
        if known:
            self._call(self._see, position, states[:known].copy())

    def follow(self, new: Sequence[int], drafted: int) -> None:
        """Take the ``new`` tokens of a step in which ``drafted`` guesses ran, and guess again."""
        self.draft = []
        if self._drafter is None:
            return
        self._wait = max(0, self._wait - len(new))
        self._learn(drafted, len(new) - 1)
        if self._drawn is not None:
            (position, states), self._drawn = self._drawn, None
            self._call(self._see, position, states[: len(new)])
        self._call(self._guess, new)

    def end(self, tokens: Sequence[int]) -> None:
        """Let the drafter go; ``tokens`` are the answer's. A second call does nothing."""
        end = getattr(self._drafter, "end", None)
        if self._has_begun and end is not None:
            self._call(end, tokens)
        self._drafter = self._see = self._drawn = None
        self.draft = []

    def _guess(self, new: Sequence[int]) -> None:
        assert self._drafter is not None
        self._drafter.extend(new)
        if not self._wait:
            width = self._most if self._paces_itself else self._width
            draft = list(self._drafter.draft(width))
            if draft and 0 <= min(draft) <= max(draft) < self._vocab:
                self.draft = draft

    def _call(self, method: Callable[..., Any] | None, *args: Any) -> None:
        """Call a method of the drafter, after ``begin``; without the drafter, do nothing."""
        if self._drafter is None or method is None:
            return
        try:
            if not self._has_begun:
                self._has_begun = True
                if self._begin is not None and self._request is not None:
                    self._begin(self._request())
            method(*args)
        except Exception as error:
            self._drafter = self._see = self._drawn = None
            _log.warning("a drafter failed", error=f"{type(error).__name__}: {error}")

    def _learn(self, drafted: int, right: int) -> None:
        if drafted == 0 or self._paces_itself:
            return
        whole = right == drafted
        self._width = min(self._most, max(self._width, right + 1) if whole else right + 1)
        if right:
            self._penalty = 1
        else:
            self._wait = self._penalty
            self._penalty = min(2 * self._penalty, LONGEST_WAIT)


def _most_of(drafter: Drafter) -> int:
    """Return the most tokens of a drafter in a step, by its own word; raises PluginError for a wrong one."""
    most = getattr(drafter, "most_tokens", FEW_TOKENS)
    if not isinstance(most, int) or not 1 <= most <= MOST_TOKENS:
        raise PluginError("drafter", f"its most_tokens is {printable(repr(most), 80)}", "ask its author for a repair")
    return most


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
