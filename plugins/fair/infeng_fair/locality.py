"""The order of one tenant's requests: earliest deadline first, with a bounded preference for cheaper requests.

A request is cheaper if its adapters run already, since it adds no further range of adapter rows to the steps, or if its
prefix is cached (longest prefix match within what fairness allows: Cao et al., "Locality-aware Fair Scheduling in LLM
Serving", arXiv 2501.14312). Each of the two counts as a deadline up to ``group`` / 2 seconds earlier, so a request is
never passed by one whose deadline is more than ``group`` seconds later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from infeng_core.api.engines import RunningRequest
from infeng_fair.accounts import Queued

LOOKAHEAD = 32
"""Number of a tenant's requests that are compared with each other at a time."""

PEEKS = 16
"""Most cache lookups in one step."""

REMEMBERED = 16
"""Steps for which the result of a cache lookup is reused."""


class Locality:
    """Tracks which adapters run and how much of each waiting request is cached."""

    def __init__(self, group: float) -> None:
        """Start without requests. group: seconds."""
        self.group = group
        self.cached: Callable[[RunningRequest], int] | None = None
        """Returns how many tokens of a request are cached; None: unknown for all."""
        self._running: Counter[object] = Counter()  # requests by their adapters
        self._waiting: Counter[object] = Counter()
        self._found: dict[RunningRequest, tuple[int, float]] = {}  # (step of the lookup, cached share of its tokens)
        self._steps = 0
        self._peeks = PEEKS

    def wait(self, request: RunningRequest) -> None:
        """Count a request as waiting."""
        self._waiting[request.request.adapter] += 1

    def go(self, request: RunningRequest) -> None:
        """Count a request as waiting no longer."""
        _take(self._waiting, request.request.adapter)
        self._found.pop(request, None)

    def start(self, request: RunningRequest) -> None:
        """Count a request as running."""
        self._running[request.request.adapter] += 1

    def stop(self, request: RunningRequest) -> None:
        """Count a request as running no longer."""
        _take(self._running, request.request.adapter)

    def step(self) -> None:
        """Begin a new step: the cache may have changed, so lookups are allowed again."""
        self._steps += 1
        self._peeks = PEEKS

    def ordered(self, queue: list[Queued]) -> Iterator[RunningRequest]:
        """Iterate over a tenant's waiting requests in the order in which they should start."""
        if self.group <= 0 or (self.cached is None and len(self._waiting) < 2):
            for entry in queue:
                yield entry[2]
            return
        window: list[Queued] = []
        for deadline, id_, request in queue:
            while window and (window[0][0] <= deadline - self.group or len(window) == LOOKAHEAD):
                yield heappop(window)[2]
            heappush(window, (deadline - self.gain(request), id_, request))
        while window:
            yield heappop(window)[2]

    def gain(self, request: RunningRequest) -> float:
        """Return the seconds by which a request's deadline counts as earlier, from 0 to ``group``."""
        return self.gain_of_adapters(request) + self.group / 2 * self._share(request)

    def gain_of_adapters(self, request: RunningRequest) -> float:
        """Return the part of the gain that adapters give: ``group`` / 2 if they run already or there are none."""
        adapter = request.request.adapter
        return self.group / 2 if adapter is None or adapter in self._running else 0.0

    def _share(self, request: RunningRequest) -> float:
        """Return the cached share of a request's tokens, from 0 to 1; 0 where no lookup was left for it."""
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
