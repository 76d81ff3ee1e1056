"""When requests end, whatever they have by then."""

from __future__ import annotations

import heapq
import math
from collections.abc import Container

from infeng_core.batch import RunningRequest

FEW = 64
"""Deadlines of requests that have gone which may always be kept."""


class Deadlines:
    """The deadlines of present requests; at most as many deadlines of departed ones are kept beside them."""

    def __init__(self) -> None:
        """Nobody has one."""
        self._heap: list[tuple[float, int, RunningRequest]] = []

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._heap)

    @property
    def first(self) -> float:
        """When the first passes; infinity without any."""
        return self._heap[0][0] if self._heap else math.inf

    def add(self, sequence: RunningRequest) -> None:
        """Keep a request's deadline, if it has one."""
        if sequence.deadline < math.inf:
            heapq.heappush(self._heap, (sequence.deadline, sequence.id, sequence))

    def passed(self, now: float) -> list[RunningRequest]:
        """Return the requests whose deadline has passed, once; some may have gone."""
        found: list[RunningRequest] = []
        while self.first <= now:
            found.append(heapq.heappop(self._heap)[2])
        return found

    def forget(self, gone: RunningRequest, here: Container[RunningRequest], count: int) -> None:
        """After one has ``gone``, make the first deadline one of the ``count`` requests that are ``here``."""
        heap = self._heap
        if gone.deadline == math.inf:
            return
        if len(heap) > 2 * count + FEW:
            heap[:] = [place for place in heap if place[2] in here]
            heapq.heapify(heap)
        while heap and heap[0][2] not in here:
            heapq.heappop(heap)
