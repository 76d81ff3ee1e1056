"""The scheduler's interface: which rows run next. The built-in one is fcfs.py."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from infeng_core.scheduling.blocks import BlockPool
from infeng_core.step import Batch, Limits, Sequence


class Scheduler(Protocol):
    """Decides the order of work and owns the cache blocks of the sequences it runs.

    The engine calls it under its lock. Where a step has room that nobody needs, a scheduler may put a sequence's
    ``draft``, or its beginning, behind the last token as further rows, all of them sampled. Nothing changes between
    ``next_batch`` and ``commit``: a batch that failed is made again.

    A sequence with ``adapters`` may run once ``adapters.acquire()`` has said so, and then until ``drop`` calls
    ``adapters.close()``; its rows are those of ``Batch.adapters`` that ``adapter_rows`` gives. Until then a scheduler
    shows the references of those that wait to ``Registry.prefetch``, which brings their adapters in. To preempt one
    it takes its blocks back, calls ``adapters.release()`` and ``restart``, and lets it wait. After an exception in the
    middle of a step, such as Ctrl-C, the engine makes another scheduler and adds all sequences to that one. Registered
    by name through the hook ``infeng_schedulers``.
    """

    def add(self, sequence: Sequence) -> None:
        """Take a new sequence; raises RequestError for one that can never run."""

    def next_batch(self) -> Batch | None:
        """Return the rows to compute now, or None when there is nothing to do."""

    def commit(self, batch: Batch, tokens: list[list[int]], finished: Collection[Sequence]) -> None:
        """Record that ``batch`` ran and let go of the sequences that are finished.

        tokens: for each segment with a sampled row the tokens it gave, at most ``sampled - known``, and at least one
        where those are any; NOT_FINITE stands for one that could not be drawn, and ends a finished sequence.
        """

    def drop(self, sequence: Sequence) -> None:
        """Let go of a sequence wherever it is, between two batches."""

    @property
    def waiting(self) -> int:
        """Sequences that have not started."""

    @property
    def running(self) -> int:
        """Sequences that have cache blocks."""


SchedulerFactory = Callable[[Limits, BlockPool], Scheduler]
