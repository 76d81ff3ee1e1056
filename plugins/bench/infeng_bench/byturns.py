"""A scheduler for measurements: two groups of requests share an engine, and only one of them runs at a time."""

from __future__ import annotations

from collections.abc import Collection

from infeng_core.api import Batch, BlockPool, FirstCome, Limits, Scheduler, Sequence

NAME = "bench-turns"


class ByTurns:
    """Requests with adapters are one group, those without the other; each is served first come, first served.

    Both groups keep their places in the cache while the other runs, so that long contexts are read once and steps with
    and without adapters follow each other as closely as one likes.
    """

    turn: bool | None = None
    """True: only requests with adapters run. False: only those without. None: those without, and then the others."""

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        """Schedule both groups within ``limits``; blocks come from ``pool``."""
        self._groups: dict[bool, Scheduler] = {uses: FirstCome(limits, pool) for uses in (False, True)}

    @property
    def waiting(self) -> int:
        """Sequences that have not started, of those whose turn it is."""
        return sum(group.waiting for group in self._served())

    @property
    def running(self) -> int:
        """Sequences that have cache blocks, of both groups."""
        return sum(group.running for group in self._groups.values())

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence in its group; raises RequestError if the whole cache could not hold it."""
        self._group(sequence).add(sequence)

    def next_batch(self) -> Batch | None:
        """Return the rows of the group whose turn it is, or None when it has nothing to do."""
        return next((batch for group in self._served() if (batch := group.next_batch()) is not None), None)

    def commit(self, batch: Batch, tokens: list[list[int]], finished: Collection[Sequence]) -> None:
        """Record that the batch ran."""
        self._group(batch.segments[0].sequence).commit(batch, tokens, finished)

    def drop(self, sequence: Sequence) -> None:
        """Let go of a sequence."""
        self._group(sequence).drop(sequence)

    def _served(self) -> Collection[Scheduler]:
        return self._groups.values() if self.turn is None else [self._groups[self.turn]]

    def _group(self, sequence: Sequence) -> Scheduler:
        return self._groups[sequence.request.adapter is not None]
