"""Which rows run next: the scheduler's interface and the batch it makes. The built-in one is firstcome.py."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.adapters import AdapterReference
from infeng_core.requests.request import Request
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.drafts import Guesses

NOT_FINITE = -1
"""Stands for the token of a row whose logits hold NaN or infinity."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that hold for every batch; a backend sizes its memory by them once."""

    max_rows: int
    max_samples: int
    max_segments: int
    context: int
    """Most positions of one sequence."""
    kv_blocks: int
    """Blocks of 16 positions in the cache, of all sequences together."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way: its tokens so far and what of them is in the cache."""

    id: int
    request: Request
    tokens: NDArray[np.int32]
    """(capacity,) the prompt, then the new tokens; capacity bounds both together."""
    prompt_length: int
    length: int
    """Tokens known: the prompt and the new ones."""
    computed: int = 0
    """Positions whose keys and values are in the cache; length - 1 while decoding."""
    blocks: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """Cache blocks of positions [16 i, 16 i + 16), enough for the whole capacity; empty while waiting."""
    last: int = 0
    """The newest token."""
    seed: int = 0
    """Of the random numbers that choose its tokens."""
    started: float = 0.0
    """When the scheduler gave it its blocks, by ``time.perf_counter``; 0 while waiting."""
    guesses: Guesses | None = None
    """What may come next; None without speculation."""
    lease: AdapterReference | None = None
    """Its adapters; None for the base alone."""
    report_from: int | None = None
    """The first position whose logits its caller wants though the next token is known; None: of no such position."""

    @staticmethod
    def start(id_: int, request: Request, prompt: list[int], capacity: int, seed: int) -> Sequence:
        """Return a sequence of which nothing is computed yet."""
        tokens = np.empty(capacity, np.int32)
        tokens[: len(prompt)] = prompt
        return Sequence(id_, request, tokens, len(prompt), len(prompt), last=prompt[-1], seed=seed)

    def restart(self, new: list[int]) -> None:
        """Compute it again from its first position; ``new`` are the tokens that it has beside its prompt."""
        self.length = self.prompt_length + len(new)
        self.tokens[self.prompt_length : self.length] = new
        self.last = int(self.tokens[self.length - 1])
        self.computed = 0
        self.blocks = self.blocks[:0]

    @property
    def draft(self) -> list[int]:
        """Guesses of the tokens after the last, nearest first; as many as fit into its capacity, often none."""
        if self.guesses is None:
            return []
        return self.guesses.draft[: len(self.tokens) - self.length - 1]

    def extend(self, new: list[int], drafted: int) -> None:
        """Add what a step gave: ``new`` tokens, from a segment that had ``drafted`` guessed rows."""
        end = self.length + len(new)
        self.tokens[self.length : end] = new
        self.length = end
        self.last = new[-1]
        self.computed = end - 1  # what was computed for wrong guesses will be overwritten
        if self.guesses is not None:
            self.guesses.follow(new, drafted)


class Segment(NamedTuple):
    """Rows [row_begin, row_end) are positions pos0, pos0 + 1, ... of one sequence, of which the last ``sampled`` are.

    Logits are wanted of no row within a prompt, of one row at its end and while decoding, and of ``1 + d`` rows where
    ``d`` guessed tokens follow the last known one. A sequence that has ``report_from`` wants those of every row from
    there on: the first ``known`` of the sampled rows are followed by tokens that are known, so nothing is drawn there.
    """

    sequence: Sequence
    row_begin: int
    row_end: int
    pos0: int
    sampled: int
    known: int = 0


class AdapterHandle(Protocol):
    """An adapter in the memory of an executable, which goes back when the last reference is dropped."""

    @property
    def nbytes(self) -> int:
        """Bytes of that memory."""


class AdapterRows(NamedTuple):
    """Rows [row_begin, row_end) of a batch use an adapter, its products times ``weight``."""

    row_begin: int
    row_end: int
    handle: AdapterHandle
    weight: float


class Batch(NamedTuple):
    """One step's work, as the arrays that a backend reads. They are overwritten by the scheduler's next batch."""

    segments: list[Segment]
    tokens: NDArray[np.int32]  # (rows,)
    positions: NDArray[np.int32]  # (rows,)
    kv_segments: NDArray[np.int32]  # (segments, 4): row_begin, row_end, pos0, first index into block_tables
    block_tables: NDArray[np.int32]  # flat: the blocks of each segment's sequence, one after the other
    sample_rows: NDArray[np.int32]  # (samples,) rows whose logits are wanted, ascending
    adapters: abc.Sequence[AdapterRows] = ()
    """Sorted by row. Adapters that combine have the same rows and follow each other in the order of the request."""


def adapter_rows(segments: abc.Sequence[Segment]) -> list[AdapterRows]:
    """Return which rows use which adapters; neighbours that use the same ones share their entries."""
    ranges: list[AdapterRows] = []
    last: tuple[tuple[AdapterHandle, float], ...] = ()
    begin = end = 0
    for segment in segments:
        lease = segment.sequence.lease
        rows = () if lease is None else lease.rows
        if rows != last:
            ranges += [AdapterRows(begin, end, handle, weight) for handle, weight in last]
            last, begin = rows, segment.row_begin
        end = segment.row_end
    ranges += [AdapterRows(begin, end, handle, weight) for handle, weight in last]
    return ranges


def part(batch: Batch, segments: abc.Sequence[Segment]) -> Batch:
    """Return the rows of some of a batch's ``segments``, in their order, as a batch."""
    kept: list[Segment] = []
    row = 0
    for segment in segments:
        rows = segment.row_end - segment.row_begin
        kept.append(segment._replace(row_begin=row, row_end=row + rows))
        row += rows
    taken = np.concatenate([np.arange(segment.row_begin, segment.row_end) for segment in segments])
    indices = [batch.segments.index(segment) for segment in segments]
    kv_segments = batch.kv_segments[indices]
    kv_segments[:, :2] = [segment[1:3] for segment in kept]
    sampled = [row for segment in kept for row in range(segment.row_end - segment.sampled, segment.row_end)]
    return Batch(
        kept,
        batch.tokens[taken],
        batch.positions[taken],
        kv_segments,
        batch.block_tables,
        np.array(sampled, np.int32),
        adapter_rows(kept),
    )


class Scheduler(Protocol):
    """Decides the order of work and owns the cache blocks of the sequences it runs.

    The engine calls it under its lock. Where a step has room that nobody needs, a scheduler may put a sequence's
    ``draft``, or its beginning, behind the last token as further rows, all of them sampled. Nothing changes between
    ``next_batch`` and ``commit``: a batch that failed is made again.

    A sequence with a ``lease`` may run once ``lease.acquire()`` has said so, and then until ``drop`` calls
    ``lease.close()``; its rows are those of ``Batch.adapters`` that ``adapter_rows`` gives. Until then a scheduler
    shows the leases of those that wait to ``Registry.prefetch``, which brings their adapters in. To preempt a sequence
    it takes its blocks back, calls ``lease.release()`` and ``restart``, and lets it wait. After an exception in the
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
