"""How long each phase of a start takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType


class Laps:
    """Seconds by phase, in the order in which they were first counted; their sum is the whole time.

    One thread at a time uses it.
    """

    def __init__(self, before: float = 0.0) -> None:
        """Begin the first phase now, or ``before`` seconds ago."""
        self._seconds: dict[str, float] = {}
        self._mark = time.perf_counter() - before

    @property
    def seconds(self) -> Mapping[str, float]:
        """What has been measured so far; it follows."""
        return MappingProxyType(self._seconds)

    @property
    def total(self) -> float:
        """The sum."""
        return sum(self._seconds.values())

    def end(self, phase: str, parts: Mapping[str, float] = MappingProxyType({})) -> None:
        """Count the time since the last call: seconds of ``parts`` to those, what is left to ``phase``."""
        now = time.perf_counter()
        left = now - self._mark - sum(parts.values())
        for name, seconds in (*parts.items(), (phase, max(0.0, left))):
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._mark = now
