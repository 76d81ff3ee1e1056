"""Streams that have nothing to say for long: a comment now and then, so that no proxy takes them for dead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

COMMENT = b": keep-alive\n"
"""Of server-sent events: readers skip it."""


def comment(*, has_ids: bool) -> bytes:
    """Return what is sent instead of a frame.

    An empty line ends it where frames have no ids; where they have, openai-python and httpx-sse would take that for the
    end of an event without data.
    """
    return COMMENT if has_ids else COMMENT + b"\n"


class KeepAlive:
    """Calls somebody each time that nothing was written for so long. One timer, which writing does not touch."""

    def __init__(self, seconds: float, ring: Callable[[], object]) -> None:
        """Begin to wait; with 0 seconds never call."""
        self._seconds = seconds
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._written = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look) if seconds else None

    def written(self) -> None:
        """Something was written."""
        self._written = self._loop.time()

    def close(self) -> None:
        """Wait no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        left = self._written + self._seconds - self._loop.time()
        if left <= 0:
            self._ring()
            left = self._seconds
        self._timer = self._loop.call_later(left, self._look)
