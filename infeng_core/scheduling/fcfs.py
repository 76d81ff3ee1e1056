"""The built-in policy ``fcfs``: first come, first served. All else is as every policy has it (policy.py)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import abc

from infeng_core.batch import Limits, RunningRequest
from infeng_core.scheduling.policy import Policy


class FirstCome(Policy):
    """Starts requests in the order of their arrival; one that was preempted keeps its place."""

    def __init__(self, limits: Limits) -> None:
        """Nobody waits yet."""
        self._waiting: list[RunningRequest] = []

    def add(self, request: RunningRequest, now: float) -> None:
        """Let a request wait behind all earlier ones."""
        insort(self._waiting, request, key=_arrival)

    def remove(self, request: RunningRequest, now: float) -> None:
        """Let it wait no longer."""
        del self._waiting[bisect_left(self._waiting, _arrival(request), key=_arrival)]

    def order(self, now: float) -> abc.Sequence[RunningRequest]:
        """Return the waiting requests in the order of arrival."""
        return self._waiting


def _arrival(request: RunningRequest) -> tuple[float, int]:
    return request.arrived, request.id
