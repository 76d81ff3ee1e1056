"""How many calls are answered at a time, in all and for one tenant."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from infeng_serve.protocol.errors import unavailable

RETRY_SECONDS = 1.0
"""What a refused call is told to wait where nothing better is known."""


class Limits:
    """Counts the calls that are being answered. For the event loop's thread."""

    def __init__(self, most: int, most_of_one: int = 0) -> None:
        """Allow ``most`` calls, ``most_of_one`` of them for one tenant (0: any number)."""
        self._most = most
        self._most_of_one = most_of_one
        self._of: Counter[str] = Counter()
        self.calls = 0

    @contextlib.contextmanager
    def one_more(self, tenant: str) -> Iterator[None]:
        """Count a call of a tenant; raises ApiError 503 where there are too many, 429 where it has too many."""
        if self.calls >= self._most:
            raise unavailable(f"The server answers {self.calls} calls already.", RETRY_SECONDS)
        if self._most_of_one and self._of[tenant] >= self._most_of_one:
            why = f"This key has {self._most_of_one} calls in the making already."
            raise unavailable(why, RETRY_SECONDS, status=429, code="rate_limit_exceeded")
        self.calls += 1
        self._of[tenant] += 1
        try:
            yield
        finally:
            self.calls -= 1
            self._of[tenant] -= 1
            if not self._of[tenant]:
                del self._of[tenant]
