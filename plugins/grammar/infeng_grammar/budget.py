"""A bound on the CPU time of one request's grammar: llguidance's own limits bound one step, not their sum."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

from infeng_core.api import RequestError

SECONDS = 0.25
"""CPU seconds that a request starts with, and the most it can save; a whole answer by a published schema takes 1/8."""

SECONDS_PER_TOKEN = 0.002
"""CPU seconds that each token adds; the mean mask takes 1/40."""


class Budget:
    """Measures the CPU time of ``with`` blocks, and refuses to enter one once the budget is spent."""

    def __init__(self, what: str, clock: Callable[[], float] = thread_time) -> None:
        """Start with SECONDS. what: the grammar, for messages. clock: CPU seconds of this thread."""
        self._what = what
        self._clock = clock
        self._left = SECONDS
        self._began = 0.0

    def earn(self, tokens: int) -> None:
        """Add the time for ``tokens`` new tokens of the request."""
        self._left = min(SECONDS, self._left + tokens * SECONDS_PER_TOKEN)

    def __enter__(self) -> None:
        """Begin to measure; raises RequestError if the budget is spent."""
        if self._left < 0:
            why = f"its masks take more than {SECONDS * 1000:g} ms and {SECONDS_PER_TOKEN * 1000:g} ms for each token"
            raise RequestError(self._what, why, "make it less ambiguous, so that a text can be read in few ways")
        self._began = self._clock()

    def __exit__(self, *_: object) -> None:
        """Subtract the time since the block was entered."""
        self._left -= self._clock() - self._began
