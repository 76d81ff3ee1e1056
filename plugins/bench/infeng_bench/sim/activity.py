"""How an engine's time and room were used, step by step, without keeping the steps."""

from __future__ import annotations

from typing import Any

MOMENTS = 400  # of a timeline, at most


class Activity:
    """Sums over steps, and a timeline thin enough to draw."""

    def __init__(self, places: int, blocks: int) -> None:
        """Expect at most ``places`` sequences at a time, in a cache of ``blocks``."""
        self.preemptions = 0  # how often a sequence's blocks were taken back
        self.places = places
        self._blocks = blocks
        self._steps = self._rows = 0
        self._busy = self._running = self._used = 0.0  # seconds, and others times seconds
        self._most_waiting = 0
        self._timeline: list[tuple[float, int, int]] = []
        self._stride = 1
        self._since = 0  # steps since the last moment of the timeline

    def step(
        self, begin: float, seconds: float, rows: int, running: int, waiting: int, blocks: float, count: int = 1
    ) -> None:
        """Count a step of ``rows`` rows, or ``count`` that took ``seconds`` together, with what was there meanwhile."""
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
        """Return shares of a run of ``duration`` seconds; means are over the time in which steps ran."""
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
        """Return the moments of some steps with the sequences that ran and waited."""
        return {
            "seconds": [begin for begin, _, _ in self._timeline],
            "running": [running for _, running, _ in self._timeline],
            "waiting": [waiting for _, _, waiting in self._timeline],
        }
