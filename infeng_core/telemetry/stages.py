"""The observer behind a profile: it counts and times the stages of requests."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from infeng_core.telemetry.observers import Observer, Stage

Slice = tuple[str, int, int, int]
"""One call: stage, Python's number of the thread, begin and end in nanoseconds of ``time.perf_counter_ns``."""


@dataclass(frozen=True, slots=True)
class StageTotal:
    """All calls of a stage."""

    name: str
    calls: int
    seconds: float


class Stages(Observer):
    """Counts calls and time per stage and keeps the latest ``events`` calls."""

    def __init__(self, events: int) -> None:
        """Start from zero."""
        self.slices: deque[Slice] = deque(maxlen=events)
        self._sums: dict[str, list[int]] = {}  # calls, nanoseconds
        self._lock = threading.Lock()

    def stage(self, name: Stage, begin: int, end: int) -> None:
        """Count a call."""
        self.slices.append((name, threading.get_ident(), begin, end))
        with self._lock:
            sums = self._sums.setdefault(name, [0, 0])
            sums[0] += 1
            sums[1] += end - begin

    def totals(self) -> dict[str, StageTotal]:
        """Return the stages that were called, by name."""
        with self._lock:
            return {name: StageTotal(name, calls, ns / 1e9) for name, (calls, ns) in self._sums.items()}
