"""Who of those that wait may start: the first come, unless its adapters are still on their way."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from infeng_core.step import Sequence

LOOKAHEAD = 64
"""For how many sets of adapters that requests wait for, the first come first, room is made."""


class _Place(NamedTuple):
    """Where a sequence waits."""

    arrival: int
    sequence: Sequence
    passed: int  # of its line, when it came


@dataclass(slots=True)
class _Line:
    """Sequences with the same adapters, or without any."""

    adapters: object
    waiting: deque[_Place] = field(default_factory=deque)
    lacks_room: bool = False  # its adapters wait for memory that requests which run hold
    passed: int = 0  # by how many while they did

    @property
    def first(self) -> _Place:
        """Who came first."""
        return self.waiting[0]

    @property
    def overtaken(self) -> int:
        """By how many the first was passed while its adapters lacked room."""
        return self.passed - self.first.passed


class Queue:
    """Sequences that have not started, in the order of their arrival.

    Where the adapters of one are not in memory, others may pass: for as long as it takes to load them, since nobody
    should wait for somebody else's storage. But one whose adapters find no room because of those that run is overtaken
    by at most ``patience`` others, then those behind it wait as well: whatever runs ends, its adapters may then leave,
    and the first in the queue gets their room (``adapters/prefetch.py``). So nobody starves.
    """

    def __init__(self, patience: int) -> None:
        """Nobody waits yet."""
        self._patience = patience
        self._lines: dict[object, _Line] = {}  # by their adapters
        self._numbers = itertools.count()
        self._prefetched_at = self._idle_at = -1  # the registry's count of changes; -1: the queue itself has changed

    def __len__(self) -> int:
        """Return how many wait."""
        return sum(len(line.waiting) for line in self._lines.values())

    def __bool__(self) -> bool:
        """Return whether anybody waits."""
        return bool(self._lines)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait behind the others."""
        adapters = _adapters(sequence)
        line = self._lines.setdefault(adapters, _Line(adapters))
        line.waiting.append(_Place(next(self._numbers), sequence, line.passed))
        self._prefetched_at = self._idle_at = -1

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence; one that is not here is ignored."""
        line = self._lines.get(_adapters(sequence))
        place = next((place for place in line.waiting if place.sequence is sequence), None) if line else None
        if line is not None and place is not None:
            self._leave(line, place)

    def take(self, fits: Callable[[Sequence], bool]) -> Sequence | None:
        """Take out and return the first that has its adapters if it ``fits``, where nobody starves; else None."""
        if self._idle_at == self._changes():
            return None
        passed: list[_Line] = []
        for line in sorted(self._lines.values(), key=lambda line: line.first.arrival):
            sequence = line.first.sequence
            reference = sequence.adapters
            if reference is None or reference.is_ready():
                if not fits(sequence):
                    return None
                if reference is None or reference.acquire():
                    for other in passed:
                        other.passed += other.lacks_room
                    self._leave(line, line.first)
                    return sequence
            passed.append(line)
            self.prefetch()
            if line.lacks_room and line.overtaken >= self._patience:
                return None
        self._idle_at = self._changes()
        return None

    def prefetch(self) -> None:
        """Bring in adapters for those that wait, if anything has changed since the last time."""
        changes = self._changes()
        if changes == self._prefetched_at:
            return
        self._prefetched_at = changes
        lines = sorted(self._lines.values(), key=lambda line: line.first.arrival)
        lines = [line for line in lines if line.adapters is not None]
        heads = (line.first.sequence.adapters for line in lines[:LOOKAHEAD])
        references = [reference for reference in heads if reference is not None]
        served = references[0].registry.prefetch(references) if references else 0
        for place, line in enumerate(lines):
            line.lacks_room = served <= place < LOOKAHEAD

    def _changes(self) -> int:
        """Return the registry's count of changes, where anybody waits for adapters."""
        reference = next((line.first.sequence.adapters for key, line in self._lines.items() if key is not None), None)
        return -2 if reference is None else reference.registry.changes

    def _leave(self, line: _Line, place: _Place) -> None:
        line.waiting.remove(place)
        if not line.waiting:
            del self._lines[line.adapters]
        self._prefetched_at = self._idle_at = -1


def _adapters(sequence: Sequence) -> object:
    reference = sequence.adapters
    return None if reference is None else reference.uses
