"""A scheduling policy for measurements: two groups of requests share an engine, and one group runs at a time."""

from __future__ import annotations

from collections.abc import Sequence

from infeng_core.api.engines import FirstCome, RunningRequest

NAME = "bench-turns"


class AlternatingGroups(FirstCome):
    """Two groups, requests with and without adapters; each is served first come, first served.

    Both groups keep their KV blocks while the other runs, so long contexts are prefilled once and steps with and
    without adapters can follow each other directly.
    """

    turn: bool | None = None
    """True: requests with adapters run. False: requests without. None: first without adapters, then with."""

    def order(self, now: float) -> Sequence[RunningRequest]:
        """Return the waiting requests of the group whose turn it is."""
        waiting = super().order(now)
        return waiting if self.turn is None else [one for one in waiting if self._uses(one) == self.turn]

    def active(self, running: Sequence[RunningRequest], now: float) -> Sequence[RunningRequest]:
        """Return the running requests of the group whose turn it is."""
        turn = all(map(self._uses, running)) if self.turn is None else self.turn
        return [one for one in running if self._uses(one) == turn]

    def _uses(self, request: RunningRequest) -> bool:
        return request.request.adapter is not None
