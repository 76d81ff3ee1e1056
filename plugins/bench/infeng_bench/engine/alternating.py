"""A scheduler for measurements: two groups of requests share an engine, and only one of them runs at a time."""

from __future__ import annotations

from collections.abc import Sequence

from infeng_core.api import FirstCome, RunningRequest

NAME = "bench-turns"


class AlternatingGroups(FirstCome):
    """Requests with adapters are one group, those without the other; each is served first come, first served.

    Both groups keep their places in the cache while the other runs, so that long contexts are read once and steps with
    and without adapters follow each other as closely as one likes.
    """

    turn: bool | None = None
    """True: only requests with adapters run. False: only those without. None: those without, and then the others."""

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
