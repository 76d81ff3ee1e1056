"""Whose turn it is: one thread runs a step for everybody, the others sleep until it is over."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType

SWITCH_INTERVAL = 0.0005
"""Seconds after which Python asks the thread that holds its lock to let another one go.

A step gives that lock up while the model runs. With Python's own 5 ms, a busy thread of the application would keep the
result of a step of 2 ms waiting for another 5.
"""


class Turns:
    """A lock that may be taken again by its owner, and a bell that rings whenever it was given back.

    A plain lock is not enough: the thread that runs one step after another would take it back before any thread that
    waits wakes up, and keep others from the events that its steps bring them.
    """

    def __init__(self) -> None:
        """Nobody's turn yet."""
        self._lock = threading.RLock()
        self._depth = 0
        self._bell = threading.Condition(threading.Lock())
        self._rung = 0

    def __enter__(self) -> None:
        """Wait for a turn and take it."""
        self._lock.acquire()
        self._begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the turn."""
        self._depth -= 1
        is_over = self._depth == 0
        if is_over:
            _short_intervals.end()
        self._lock.release()
        if is_over:
            with self._bell:
                self._rung += 1
                self._bell.notify_all()

    def attempt(self, work: Callable[[], None]) -> bool:
        """Call ``work`` in a turn if nobody else has one, and return whether that was so."""
        if not self._lock.acquire(blocking=False):
            return False
        self._begin()
        try:
            work()
        finally:
            self.__exit__(None, None, None)
        return True

    def run_until(self, is_done: Callable[[], bool], work: Callable[[], None]) -> None:
        """Call ``work`` in turns of one's own, or sleep through those of others, until ``is_done``."""
        while not is_done():
            rung = self._rung
            if not self.attempt(lambda: None if is_done() else work()):
                with self._bell:
                    while self._rung == rung:
                        self._bell.wait()

    def _begin(self) -> None:
        self._depth += 1
        if self._depth == 1:
            _short_intervals.begin()


class _ShortIntervals:
    """Sets Python's switch interval while at least one engine of the process has a turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0.0

    def begin(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, SWITCH_INTERVAL))

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                sys.setswitchinterval(self._before)


_short_intervals = _ShortIntervals()
