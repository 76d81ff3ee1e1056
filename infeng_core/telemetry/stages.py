"""Timers of the stages of a request's way, put before the parts of an engine and taken away again."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Slice(NamedTuple):
    """One call of a stage; times in nanoseconds of ``time.perf_counter_ns``."""

    stage: str
    thread: int
    """The system's number of the thread."""
    begin_ns: int
    end_ns: int


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
        self._sums: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` with its calls counted as ``stage``, those that raise included."""
        clock, thread = time.perf_counter_ns, threading.get_native_id

        def call(*args: Any, **kwargs: Any) -> Any:
            begin = clock()
            try:
                return function(*args, **kwargs)
            finally:
                self._add(Slice(stage, thread(), begin, clock()))

        return call

    def before(self, part: Any, methods: Mapping[str, str]) -> TimedPart:
        """Return a stand-in for ``part`` whose ``methods`` {name: stage} are timed."""
        return TimedPart(part, {name: self.timed(stage, getattr(part, name)) for name, stage in methods.items()})

    def totals(self) -> dict[str, StageTotal]:
        """Return the stages that were called, by name."""
        with self._lock:
            return {name: StageTotal(name, calls, ns / 1e9) for name, (calls, ns) in self._sums.items()}

    def _add(self, slice_: Slice) -> None:
        with self._lock:
            calls, ns = self._sums.get(slice_.stage, (0, 0))
            self._sums[slice_.stage] = calls + 1, ns + slice_.end_ns - slice_.begin_ns
        self.slices.append(slice_)


class TimedPart:
    """Stands before a part of an engine: some methods are timed, all else is the part's own."""

    def __init__(self, part: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
        """Made by ``Stages.before``."""
        self._part = part
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        """Be the part in every other respect."""
        return getattr(self._part, name)
