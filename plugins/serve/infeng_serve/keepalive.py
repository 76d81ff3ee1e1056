"""The timer of idle streams, which are kept open so that proxies do not close them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class KeepAlive:
    """Calls a function after each period without a write. Uses one timer, which writes do not reset."""

    def __init__(self, seconds: float, ring: Callable[[], object]) -> None:
        """Call ``ring`` after each ``seconds`` without a write; 0: never."""
        self._seconds = seconds
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._written = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look) if seconds else None

    def written(self) -> None:
        """Note a write."""
        self._written = self._loop.time()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        left = self._written + self._seconds - self._loop.time()
        if left <= 0:
            self._ring()
            left = self._seconds
        self._timer = self._loop.call_later(left, self._look)
