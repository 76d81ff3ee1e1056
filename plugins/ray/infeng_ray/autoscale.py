"""How many replicas are wanted: more while requests wait, fewer while those that run would fit on fewer."""

from __future__ import annotations

import math
from typing import Any

ROOM = 0.7
"""Share of a replica's places that may be taken after one replica less: what is left takes a burst."""


def wanted(waiting: float, running: float, replicas: int, places: int) -> int:
    """Return the number of replicas for this load, before bounds and delays.

    While requests wait, as many more as the waiting ones need at the present number of running ones on each, at most
    twice as many; else one less if the running ones would take at most ROOM of the others' ``places``.
    """
    if replicas < 1:
        return 1
    if waiting >= 1:
        each = max(1.0, min(running / replicas, places))
        return replicas + max(1, min(replicas, math.ceil(waiting / each)))
    if replicas > 1 and running <= ROOM * places * (replicas - 1):
        return replicas - 1
    return replicas


class Policy:
    """The policy that Ray Serve asks; Ray applies bounds and delays."""

    def __init__(self, places: int) -> None:
        """places: requests that a replica runs at a time."""
        self._places = places

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas for Ray's ``AutoscalingContext``, and an empty state.

        A replica's value that has not come yet counts as 0.
        """
        figures = context.aggregated_metrics or {}
        waiting = sum((figures.get("waiting") or {}).values())
        running = sum((figures.get("running") or {}).values())
        if context.current_num_replicas != context.target_num_replicas:
            return context.target_num_replicas, {}  # some start or drain: the load is about to change
        return wanted(waiting, running, context.current_num_replicas, self._places), {}
