"""Which of one tenant's requests is next: the earliest deadline, and before it what is cheaper to run now.

Cheaper is a request whose adapters run already, since no further range of rows with adapters joins the steps, and one
whose beginning is in the cache (longest prefix match within what fairness allows: Cao et al., "Locality-aware Fair
Scheduling in LLM Serving", arXiv 2501.14312). Either counts as half of ``group`` seconds of an earlier deadline. So
nobody is passed by a request whose deadline is more than ``group`` seconds later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from infeng_core.api import RunningRequest
from infeng_fair.accounts import Place

LOOKAHEAD = 32
"""Requests of a tenant that are compared with each other at a time."""

PEEKS = 16
"""Requests at most whose beginnings are looked for in the cache in one step ..."""

REMEMBERED = 16
"""... and the steps for which what was found is believed."""


class Locality:
    """Knows which adapters run and what of prompts is in the cache."""

    def __init__(self, group: float) -> None:
        """Nothing runs. group: seconds."""
        self.group = group
        self.cached: Callable[[RunningRequest], int] | None = None
        """How many tokens of a request are in the cache; None: nobody knows."""
        self._running: Counter[object] = Counter()  # adapters, by how many requests
        self._waiting: Counter[object] = Counter()
        self._found: dict[RunningRequest, tuple[int, float]] = {}  # (when, share of its tokens)
        self._steps = 0
        self._peeks = PEEKS

    def wait(self, request: RunningRequest) -> None:
        """Note a request that waits."""
        self._waiting[request.request.adapter] += 1

    def go(self, request: RunningRequest) -> None:
        """Note that it waits no longer."""
        _take(self._waiting, request.request.adapter)
        self._found.pop(request, None)

    def start(self, request: RunningRequest) -> None:
        """Note a request that runs."""
        self._running[request.request.adapter] += 1

    def stop(self, request: RunningRequest) -> None:
        """Note that it runs no longer."""
        _take(self._running, request.request.adapter)

    def step(self) -> None:
        """Note that a step has run: the cache may hold something else."""
        self._steps += 1
        self._peeks = PEEKS

    def ordered(self, queue: list[Place]) -> Iterator[RunningRequest]:
        """Iterate over a tenant's requests, who is next first."""
        if self.group <= 0 or (self.cached is None and len(self._waiting) < 2):
            for place in queue:
                yield place[2]
            return
        window: list[Place] = []
        for deadline, id_, request in queue:
            while window and (window[0][0] <= deadline - self.group or len(window) == LOOKAHEAD):
                yield heappop(window)[2]
            heappush(window, (deadline - self.gain(request), id_, request))
        while window:
            yield heappop(window)[2]

    def gain(self, request: RunningRequest) -> float:
        """Return by how many seconds a request's deadline counts as earlier, from 0 to ``group``."""
        return self.gain_of_adapters(request) + self.group / 2 * self._share(request)

    def gain_of_adapters(self, request: RunningRequest) -> float:
        """Return the part of it for adapters: nothing new joins the steps with them."""
        adapter = request.request.adapter
        return self.group / 2 if adapter is None or adapter in self._running else 0.0

    def _share(self, request: RunningRequest) -> float:
        """Return which part of a request is in the cache, as far as it was looked for."""
        if self.cached is None:
            return 0.0
        found = self._found.get(request)
        if found is None or self._steps - found[0] >= REMEMBERED:
            if self._peeks <= 0:
                return 0.0 if found is None else found[1]
            self._peeks -= 1
            found = self._found[request] = (self._steps, self.cached(request) / request.length)
        return found[1]


def _take(counter: Counter[object], key: object) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
