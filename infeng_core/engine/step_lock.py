"""Turns: one thread runs a step for all threads, the others sleep until it is over.

Ctrl-C raises KeyboardInterrupt in the main thread after any call and at any turn of a loop. So nothing here counts, and
nothing is done between a lock and the ``with`` that gives it back: what is held follows from what is stored, in one
operation of the interpreter each.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from infeng_core.errors import UsageError

SWITCH_INTERVAL = 0.0005
"""Seconds after which Python asks the thread that holds its lock to let another one go.

A step gives that lock up while the model runs. With Python's own 5 ms, a busy thread of the application would keep the
result of a step of 2 ms waiting for another 5.
"""

_NOW = "now"
_T = TypeVar("_T")


class _Turn:
    """One turn: its lock is held from before it begins until after it has ended."""

    __slots__ = ("lock", "thread")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread = threading.get_ident()


class StepLock:
    """Hands out turns, one at a time. A thread without one sleeps through exactly the turn in its way.

    A plain lock is not enough: the thread that runs one step after another would take it back before any thread that
    waits wakes up, and keep others from the events that its steps bring them.
    """

    def __init__(self) -> None:
        """Begin without a turn."""
        self._turns: dict[str, _Turn] = {}  # the one that goes on, if any

    @property
    def current(self) -> tuple[object, int] | None:
        """The turn that goes on, another object each time, and its thread; None between two. Any thread may ask."""
        turn = self._turns.get(_NOW)
        return None if turn is None else (turn, turn.thread)

    def attempt(self, work: Callable[[], object]) -> bool:
        """Call ``work`` in a turn if no thread has one, this one included, and return whether that was so."""
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
            finally:  # without a call: an interrupt cannot come between
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
        """Call ``work`` in turns of one's own, or sleep through those of others, until ``is_done``."""
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
        self._usual: float | None = None  # what to go back to; None: the interval is the application's

    def forget(self) -> None:
        """Begin anew in a forked process: threads that it does not have may hold the lock, and turns."""
        self._lock = threading.Lock()
        self._users = set()

    def begin(self, user: StepLock) -> None:
        with self._lock:
            self._users = {one for one in self._users if one.current is not None}  # but for ends that Ctrl-C cut off
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
