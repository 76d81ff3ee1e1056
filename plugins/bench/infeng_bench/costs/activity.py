"""Sums of an engine's time, batch size and cache use over its steps."""

from __future__ import annotations

from typing import Any

MOMENTS = 400  # most points of a timeline


class Activity:
    """Sums over steps, and a timeline of at most MOMENTS points."""

    def __init__(self, places: int, blocks: int) -> None:
        """Start at zero. places: most running sequences. blocks: of the cache."""
        self.preemptions = 0
        self.places = places
        self._blocks = blocks
        self._steps = self._rows = 0
        self._busy = self._running = self._used = 0.0  # seconds; sequences times seconds; blocks times seconds
        self._most_waiting = 0
        self._timeline: list[tuple[float, int, int]] = []
        self._stride = 1
        self._since = 0  # steps since the last moment of the timeline

    def step(
        self, begin: float, seconds: float, rows: int, running: int, waiting: int, blocks: float, count: int = 1
    ) -> None:
        """Add ``count`` equal steps of ``rows`` rows that took ``seconds`` together; blocks: in use meanwhile."""
        self._steps += count
        self._rows += rows * count
        self._busy += seconds
        self._running += running * seconds
        self._used += blocks * seconds
        if waiting > self._most_waiting:
            self._most_waiting = waiting
        self._since += count
        if self._since >= self._stride:
            self._since = 0
            self._timeline.append((begin, running, waiting))
            if len(self._timeline) > MOMENTS:
                del self._timeline[::2]
                self._stride *= 2

    def figures(self, duration: float) -> dict[str, Any]:
        """Return the figures of a run of ``duration`` seconds; means are over the time in which steps ran."""
        found: dict[str, Any] = {"steps": self._steps, "preemptions": self.preemptions}
        if self._busy <= 0:
            return found
        return found | {
            "busy_share": self._busy / duration if duration > 0 else 1.0,
            "mean_step_ms": 1000 * self._busy / self._steps,
            "mean_step_rows": self._rows / self._steps,
            "mean_running": self._running / self._busy,
            "occupancy": self._running / self._busy / self.places,
            "kv_occupancy": self._used / self._busy / self._blocks,
            "most_waiting": self._most_waiting,
        }

    def timeline(self) -> dict[str, list[float]]:
        """Return times of some steps, with the numbers of running and waiting sequences."""
        return {
            "seconds": [begin for begin, _, _ in self._timeline],
            "running": [running for _, running, _ in self._timeline],
            "waiting": [waiting for _, _, waiting in self._timeline],
        }
