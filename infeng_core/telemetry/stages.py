"""Timers of the stages of a request's way, put before the parts of an engine and taken away again."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Slice = tuple[str, int, int, int]
"""One call: stage, Python's number of the thread, begin and end in nanoseconds of ``time.perf_counter_ns``."""


@dataclass(frozen=True, slots=True)
class StageTotal:
    """All calls of a stage."""

    name: str
    calls: int
    seconds: float


class Stages:
    """Counts calls and time per stage and keeps the latest ``events`` calls; any thread may call a timed function."""

    def __init__(self, events: int) -> None:
        """Start from zero."""
        self.slices: deque[Slice] = deque(maxlen=events)
        self._sums: dict[str, list[int]] = {}  # calls, nanoseconds
        self._lock = threading.Lock()

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` with its calls counted as ``stage``, those that raise included."""
        clock, thread, lock, keep = time.perf_counter_ns, threading.get_ident, self._lock, self.slices.append
        sums = self._sums.setdefault(stage, [0, 0])

        def call(*args: Any, **kwargs: Any) -> Any:  # short: it runs several times a step, its code and data cold
            begin = clock()
            try:
                return function(*args, **kwargs)
            finally:
                end = clock()
                keep((stage, thread(), begin, end))
                with lock:
                    sums[0] += 1
                    sums[1] += end - begin

        return call

    def before(self, part: Any, methods: Mapping[str, str]) -> TimedPart:
        """Return a stand-in for ``part`` whose ``methods`` {name: stage} are timed."""
        return TimedPart(part, {name: self.timed(stage, getattr(part, name)) for name, stage in methods.items()})

    def totals(self) -> dict[str, StageTotal]:
        """Return the stages that were called, by name."""
        with self._lock:
            return {name: StageTotal(name, calls, ns / 1e9) for name, (calls, ns) in self._sums.items() if calls}


class TimedPart:
    """Stands before a part of an engine: some methods are timed, all else is the part's own."""

    def __init__(self, part: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
        """Made by ``Stages.before``."""
        self._part = part
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        """Be the part in every other respect."""
        return getattr(self._part, name)
