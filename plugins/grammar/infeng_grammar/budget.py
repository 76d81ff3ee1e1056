"""The processor time that one request's grammar may take: the library's own limits bound a step, not their sum."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

from infeng_core.api import RequestError

SECONDS = 0.25
"""What a request may have at once; whole answers by published schemas take an eighth ..."""

SECONDS_PER_TOKEN = 0.002
"""... and what each of its tokens adds to what is left, up to that again; the mean mask takes a fortieth."""


class Budget:
    """Measures what is done in a ``with`` block, and lets none begin once too much has been done."""

    def __init__(self, what: str, clock: Callable[[], float] = thread_time) -> None:
        """what: the grammar, for messages. clock: seconds that this thread has computed."""
        self._what = what
        self._clock = clock
        self._left = SECONDS
        self._began = 0.0

    def earn(self, tokens: int) -> None:
        """Count tokens that the request has gained."""
        self._left = min(SECONDS, self._left + tokens * SECONDS_PER_TOKEN)

    def __enter__(self) -> None:
        """Begin; raises RequestError where nothing is left."""
        if self._left < 0:
            why = f"its masks take more than {SECONDS * 1000:g} ms and {SECONDS_PER_TOKEN * 1000:g} ms for each token"
            raise RequestError(self._what, why, "make it less ambiguous, so that a text can be read in few ways")
        self._began = self._clock()

    def __exit__(self, *_: object) -> None:
        """End."""
        self._left -= self._clock() - self._began
