"""Who of those that wait may start: the first come, unless its adapters are still on their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from infeng_core.scheduler import Sequence

LOOKAHEAD = 64
"""How many of those that wait are looked at: for one that can start, and for adapters to bring in."""


class Queue:
    """Sequences that have not started, in the order of their arrival.

    Where the first cannot start for want of its adapters, the next that can may pass. Nobody starves: a sequence is
    overtaken by at most ``patience`` others, then those behind it wait as well; whatever runs ends, its adapters may
    then leave, and the first in the queue gets their room (``adapters/staging.py``).
    """

    def __init__(self, patience: int) -> None:
        """Nobody waits yet."""
        self._patience = patience
        self._waiting: deque[Sequence] = deque()
        self._staged_at = -1  # the registry's count of changes; -1: the queue itself has changed

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait behind the others."""
        self._waiting.append(sequence)
        self._staged_at = -1

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence; one that is not here is ignored."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)
            self._staged_at = -1

    def take(self, fits: Callable[[Sequence], bool]) -> Sequence | None:
        """Take out and return the first that has its adapters, if it and all before it ``fits``; else None."""
        for index, sequence in enumerate(islice(self._waiting, LOOKAHEAD)):
            if not fits(sequence):
                return None
            lease = sequence.lease
            if lease is None or lease.acquire():
                for passed in islice(self._waiting, index):
                    if passed.lease is not None:
                        passed.lease.overtaken += 1
                del self._waiting[index]
                self._staged_at = -1
                return sequence
            if lease.overtaken >= self._patience:
                return None
        return None

    def stage(self) -> None:
        """Bring in adapters for those that wait, if anything has changed since the last time."""
        leases = [sequence.lease for sequence in islice(self._waiting, LOOKAHEAD) if sequence.lease is not None]
        if leases and leases[0].registry.changes != self._staged_at:
            registry = leases[0].registry
            self._staged_at = registry.changes
            registry.stage(leases)
