"""The built-in scheduler ``fcfs``: first come, first served, with continuous batching and chunked prefill."""

from __future__ import annotations

import time
from collections.abc import Collection

import numpy as np

from infeng_core.errors import RequestError
from infeng_core.scheduling.admission import Queue
from infeng_core.scheduling.blocks import BlockPool, blocks_for
from infeng_core.step import AdapterRows, Batch, Limits, Segment, Sequence, adapter_rows


class FirstCome:
    """Serves sequences in the order of their arrival.

    A step holds one row of every sequence that is decoding, then chunks of prompts in order of arrival, up to
    ``max_rows``; rows that are left over go to guessed tokens. A sequence is admitted when blocks for its prompt and
    all of its new tokens are free, and nobody overtakes the first that waits, but for adapters that are on their way
    (admission.py): an admitted one always runs to its end, nothing is preempted, nothing deadlocks. Sequences with the
    same adapters have neighbouring rows.
    """

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        """Schedule within ``limits``; blocks come from ``pool``."""
        self._limits = limits
        self._pool = pool
        self._slots = min(limits.max_segments, limits.max_samples, limits.max_rows)
        self._waiting = Queue(patience=2 * self._slots)
        self._running: list[Sequence] = []  # in the order of their admission
        self._grouped: list[Sequence] = []  # the same, those with the same adapters next to each other
        self._tokens = np.zeros(limits.max_rows, np.int32)
        self._positions = np.zeros(limits.max_rows, np.int32)
        self._kv_segments = np.zeros((limits.max_segments, 4), np.int32)
        self._sample_rows = np.zeros(limits.max_samples, np.int32)
        self._order: list[Sequence] = []  # whose blocks the flat table holds
        self._block_tables = np.zeros(0, np.int32)
        self._ends: list[int] = []  # of the segments whose adapters follow
        self._adapters: list[AdapterRows] = []

    @property
    def waiting(self) -> int:
        """Sequences that have not started."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences that have cache blocks."""
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; raises RequestError if the whole cache could not hold it."""
        needed = blocks_for(len(sequence.tokens))
        if needed > self._pool.total:
            raise RequestError(
                f"request of {len(sequence.tokens)} tokens",
                f"it needs {needed} cache blocks and the engine has {self._pool.total}",
                "lower max_tokens or raise kv_cache.memory",
            )
        self._waiting.add(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence and free its blocks; one that is not here is ignored."""
        if sequence in self._running:
            self._running.remove(sequence)
            self._grouped.remove(sequence)
            self._pool.release(sequence.blocks)
        else:
            self._waiting.remove(sequence)
        if sequence.adapters is not None:
            sequence.adapters.close()
            self._ends, self._adapters = [], []  # no handle is kept longer than it is used

    def next_batch(self) -> Batch | None:
        """Return the rows to compute now, or None when there is nothing to do."""
        if self._waiting:
            self._admit()
            self._waiting.prefetch()
        if not self._running:
            return None
        segments = self._decode_rows()
        self._prefill_chunks(segments)
        return self._batch(segments)

    def commit(self, batch: Batch, tokens: list[list[int]], finished: Collection[Sequence]) -> None:
        """Record the batch's rows as computed, append the new tokens, free what is finished."""
        new = iter(tokens)
        for segment in batch.segments:
            drawn = next(new) if segment.sampled else ()
            if drawn:
                segment.sequence.extend(drawn, segment.sampled - segment.known - 1)
            else:
                segment.sequence.computed = segment.pos0 + segment.row_end - segment.row_begin
        for sequence in finished:
            self.drop(sequence)

    def _admit(self) -> None:
        """Start waiting sequences in order while slots, blocks and rows of this step allow."""
        running = self._running
        rows_left = self._limits.max_rows - sum(sequence.length - sequence.computed for sequence in running)
        while rows_left > 0 and len(running) < self._slots:
            sequence = self._waiting.take(self._fits)
            if sequence is None:
                break
            sequence.blocks = self._pool.allocate(blocks_for(len(sequence.tokens)))
            sequence.started = time.perf_counter()
            running.append(sequence)
            self._group(sequence)
            rows_left -= sequence.length

    def _fits(self, sequence: Sequence) -> bool:
        return blocks_for(len(sequence.tokens)) <= self._pool.free

    def _group(self, sequence: Sequence) -> None:
        """Place a sequence behind the last one with the same adapters."""
        grouped, uses = self._grouped, _uses(sequence)
        for index in range(len(grouped), 0, -1):
            if _uses(grouped[index - 1]) == uses:
                grouped.insert(index, sequence)
                return
        grouped.append(sequence)

    def _decode_rows(self) -> list[Segment]:
        """Return one row of each sequence whose prompt is in the cache, and its guesses as far as rows are left."""
        segments: list[Segment] = []
        tokens: list[int] = []
        positions: list[int] = []
        spare = self._spare_rows() if any(sequence.guesses is not None for sequence in self._running) else 0
        for sequence in self._grouped:
            begin = sequence.computed
            if begin != sequence.length - 1:
                continue
            row = len(tokens)
            tokens.append(sequence.last)
            if spare > 0 and (draft := sequence.draft[:spare]):
                tokens += draft
                spare -= len(draft)
            rows = len(tokens) - row
            positions.extend(range(begin, begin + rows))
            segments.append(Segment(sequence, row, row + rows, begin, rows))
        self._tokens[: len(tokens)] = tokens
        self._positions[: len(tokens)] = positions
        return segments

    def _spare_rows(self) -> int:
        """Return the rows that remain when every sequence has what it needs in this step."""
        limits, running = self._limits, self._running
        needed = sum(sequence.length - sequence.computed for sequence in running)
        return min(limits.max_rows - needed, limits.max_samples - len(running))

    def _prefill_chunks(self, segments: list[Segment]) -> None:
        """Fill the rest of the step with chunks of prompts, first come first."""
        if len(segments) == len(self._running):
            return
        row = segments[-1].row_end if segments else 0
        left = self._limits.max_rows - row
        spare = self._limits.max_samples - len(self._running) - sum(segment.sampled - 1 for segment in segments)
        chunks: dict[Sequence, int] = {}  # rows of each
        for sequence in self._running:
            needed = sequence.length - sequence.computed
            if left == 0:
                break
            if needed > 1:
                rows = min(needed, left)
                if sequence.report_from is not None:
                    silent = max(0, sequence.report_from - sequence.computed)  # rows before the first that is reported
                    rows = min(rows, silent + 1 + spare)
                    spare -= max(0, rows - silent - 1)
                chunks[sequence] = rows
                left -= rows
        for sequence in self._grouped:
            rows, begin = chunks.get(sequence, 0), sequence.computed
            if rows == 0:
                continue
            self._tokens[row : row + rows] = sequence.tokens[begin : begin + rows]
            self._positions[row : row + rows] = np.arange(begin, begin + rows, dtype=np.int32)
            is_last = int(begin + rows == sequence.length)
            sampled = is_last
            if sequence.report_from is not None:
                sampled = min(rows, max(sampled, begin + rows - sequence.report_from))
            segments.append(Segment(sequence, row, row + rows, begin, sampled, sampled - is_last))
            row += rows

    def _batch(self, segments: list[Segment]) -> Batch:
        order = [segment.sequence for segment in segments]
        kv_segments = self._kv_segments[: len(segments)]
        ends = [segment.row_end for segment in segments]
        if order != self._order or ends != self._ends:
            self._ends, self._adapters = ends, adapter_rows(segments)
        if order != self._order:
            tables = [sequence.blocks for sequence in order]
            self._order = order
            self._block_tables = np.concatenate(tables)
            kv_segments[:, 3] = np.cumsum([0, *map(len, tables[:-1])])
        rows = ends[-1]
        kv_segments[:, :3] = [segment[1:4] for segment in segments]  # row_begin, row_end, pos0
        sampled = [row for segment in segments for row in range(segment.row_end - segment.sampled, segment.row_end)]
        sample_rows = self._sample_rows[: len(sampled)]
        sample_rows[:] = sampled
        return Batch(
            segments,
            self._tokens[:rows],
            self._positions[:rows],
            kv_segments,
            self._block_tables,
            sample_rows,
            self._adapters,
        )


def _uses(sequence: Sequence) -> tuple[tuple[object, float], ...]:
    """Return (handle, weight) of a running sequence's adapters."""
    return () if sequence.adapters is None else sequence.adapters.rows
