"""Limits on concurrent calls, in total and per tenant."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from infeng_serve.protocol.errors import unavailable

RETRY_SECONDS = 1.0
"""Default Retry-After of refused calls, in seconds."""


class Limits:
    """Counts the calls that are being answered. Must be used on the event loop's thread."""

    def __init__(self, most: int, most_of_one: int = 0) -> None:
        """Allow ``most`` calls, ``most_of_one`` of them for one tenant (0: any number)."""
        self._most = most
        self._most_of_one = most_of_one
        self._of: Counter[str] = Counter()
        self.calls = 0

    @contextlib.contextmanager
    def one_more(self, tenant: str) -> Iterator[None]:
        """Count a tenant's call while it runs; raises ApiError 503 for too many calls, 429 for too many of its own."""
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
