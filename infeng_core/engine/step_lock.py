"""Turns: one thread runs a step for all threads, the others sleep until it is over.

Ctrl-C raises KeyboardInterrupt in the main thread after any call and at any iteration of a loop. So nothing here is
counted, and no code runs between acquiring a lock and the ``with`` that releases it: the state follows from single
stores, each one operation of the interpreter.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from infeng_core.errors import UsageError

SWITCH_INTERVAL = 0.0002
"""Seconds after which Python asks the thread that holds the GIL to release it.

A step releases the GIL while the model runs. With Python's default of 5 ms, a busy thread of the application would
delay the result of a step of 2 ms by another 5.
"""

_NOW = "now"
_T = TypeVar("_T")


class _Turn:
    """One turn: its lock is held from before its beginning until after its end."""

    __slots__ = ("lock", "thread")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread = threading.get_ident()


class StepLock:
    """Gives out turns, one at a time. A thread without one sleeps through exactly the present turn.

    A plain lock is not enough: the thread that runs step after step would take it back before a waiting thread wakes
    up, and keep other threads from the events of its steps.
    """

    def __init__(self) -> None:
        """Start without a turn."""
        self._turns: dict[str, _Turn] = {}  # the present one, if any

    @property
    def current(self) -> tuple[object, int] | None:
        """The present turn, a new object for each, and its thread; None between two. Any thread may ask."""
        turn = self._turns.get(_NOW)
        return None if turn is None else (turn, turn.thread)

    def attempt(self, work: Callable[[], object]) -> bool:
        """Call ``work`` in a turn if no thread has one, including this thread; return whether it did."""
        turn = _Turn()
        with turn.lock:
            try:
                if self._turns.setdefault(_NOW, turn) is not turn:
                    return False
                try:
                    _short_intervals.begin(self)
                    work()
                finally:
                    _short_intervals.end(self)
            finally:  # no call here: an interrupt cannot come between
                if _NOW in self._turns and self._turns[_NOW] is turn:
                    del self._turns[_NOW]
        return True

    def run(self, work: Callable[[], _T]) -> _T:
        """Wait for a turn, call ``work`` in it and return its result; raises UsageError in a turn of this thread."""
        results: list[_T] = []
        while not self.attempt(lambda: results.append(work())):
            self._sleep()
        return results[0]

    def run_until(self, is_done: Callable[[], bool], work: Callable[[], None]) -> None:
        """Call ``work`` in turns of this thread, or sleep through other threads' turns, until ``is_done``."""
        while not is_done():
            if not self.attempt(lambda: None if is_done() else work()):
                self._sleep()

    def _sleep(self) -> None:
        turn = self._turns.get(_NOW)
        if turn is None:
            return
        if turn.thread == threading.get_ident():
            raise UsageError("engine", "this thread is in the middle of one of its steps", "call it after the step")
        with turn.lock:
            pass


class _ShortIntervals:
    """Sets Python's switch interval while at least one engine of the process has a turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: set[StepLock] = set()
        self._usual: float | None = None  # the value to restore; None: the interval is the application's

    def forget(self) -> None:
        """Reset in a forked process: threads that it lacks may hold the lock and turns."""
        self._lock = threading.Lock()
        self._users = set()

    def begin(self, user: StepLock) -> None:
        with self._lock:
            self._users = {one for one in self._users if one.current is not None}  # others were cut off by Ctrl-C
            self._users.add(user)
            if self._usual is None and (usual := sys.getswitchinterval()) > SWITCH_INTERVAL:
                self._usual = usual
            if self._usual is not None:
                sys.setswitchinterval(SWITCH_INTERVAL)

    def end(self, user: StepLock) -> None:
        with self._lock:
            self._users.discard(user)
            if not self._users and self._usual is not None:
                sys.setswitchinterval(self._usual)
                self._usual = None


_short_intervals = _ShortIntervals()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_short_intervals.forget)
