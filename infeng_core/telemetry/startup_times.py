"""How long each phase of a start takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType


class StartupTimes:
    """Seconds by phase, in the order in which they were first counted; their sum is the whole time.

    One thread at a time measures; any may read.
    """

    def __init__(self, before: float = 0.0) -> None:
        """Begin the first phase now, or ``before`` seconds ago."""
        self.seconds: Mapping[str, float] = {}
        """What has been measured so far; a later phase makes another mapping."""
        self._mark = time.perf_counter() - before

    @property
    def total(self) -> float:
        """The sum."""
        return sum(self.seconds.values())

    def record(self, phase: str, parts: Mapping[str, float] = MappingProxyType({})) -> None:
        """Count the time since the last call: seconds of ``parts`` to those, what is left to ``phase``."""
        now = time.perf_counter()
        left = now - self._mark - sum(parts.values())
        found = dict(self.seconds)
        for name, seconds in (*parts.items(), (phase, max(0.0, left))):
            found[name] = found.get(name, 0.0) + seconds
        self.seconds, self._mark = found, now
