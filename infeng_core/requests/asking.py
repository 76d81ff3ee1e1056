"""Asks the logit processors of a batch while it runs, on a thread of their own.

Ctrl-C may come between any two lines of the callers: what is done is told by a flag, and nobody holds a lock meanwhile.
"""

from __future__ import annotations

import _thread
from queue import SimpleQueue

from infeng_core.requests.changes import Changes
from infeng_core.step import Batch

_LOST = 0.1
"""Seconds after which the flag is looked at again, should the bell have been heard and forgotten."""


class Asking:
    """A batch whose processors are being asked."""

    def __init__(self, batch: Batch) -> None:
        """Ask those of ``batch``, in ``run``."""
        self.batch = batch
        self._found: Changes | BaseException | None = None
        self._bell = _thread.allocate_lock()
        self._bell.acquire()

    def run(self) -> None:
        """Ask, on the other thread."""
        try:
            self._found = Changes(self.batch)
        except BaseException as error:
            self._found = error
        self._bell.release()

    def result(self) -> Changes:
        """Return what they said, once they have; raises what they did."""
        while self._found is None:
            self._bell.acquire(timeout=_LOST)
        if isinstance(self._found, BaseException):
            raise self._found
        return self._found


class Asker:
    """The thread, from the first batch on."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._work: SimpleQueue[Asking | None] = SimpleQueue()
        self._is_started = False

    def ask(self, batch: Batch) -> Asking | None:
        """Begin to ask the processors of ``batch``; None where the system has no more threads."""
        if not self._is_started:
            try:
                _thread.start_new_thread(_serve, (self._work,))
            except RuntimeError:
                return None
            self._is_started = True
        asking = Asking(batch)
        self._work.put(asking)
        return asking

    def close(self) -> None:
        """Let the thread end."""
        self._work.put(None)


def _serve(work: SimpleQueue[Asking | None]) -> None:
    while (asking := work.get()) is not None:
        asking.run()
        del asking  # which holds the batch
