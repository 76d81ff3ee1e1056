"""Rows of sequences, laid out as the arrays that a backend reads."""

from __future__ import annotations

from itertools import groupby, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_core.batch import AdapterRows, Batch, Limits, RunningRequest, Segment, adapter_rows, is_split, uses_of


class Work(NamedTuple):
    """Rows of one sequence in a step, from its first uncomputed position on."""

    sequence: RunningRequest
    rows: int
    sampled: int
    known: int = 0
    """As in Segment."""


def prompt_work(sequences: list[RunningRequest], chunks: dict[RunningRequest, int]) -> list[Work]:
    """Return as many rows of each prompt as ``chunks`` says, in the order of ``sequences``."""
    work: list[Work] = []
    for sequence in sequences:
        count = chunks.get(sequence, 0)
        if count <= 0:
            continue
        begin = sequence.computed
        is_last = int(begin + count == sequence.length)
        sampled = is_last
        if sequence.report_from is not None:
            sampled = min(count, max(sampled, begin + count - sequence.report_from))
        work.append(Work(sequence, count, sampled, sampled - is_last))
    return work


class BatchBuilder:
    """Owns the arrays of the batches."""

    def __init__(self, limits: Limits, tables: NDArray[np.int32]) -> None:
        """Make room for batches within ``limits``; tables: (slots, groups, blocks), of the sequence in each slot."""
        self._tokens = np.zeros(limits.max_rows, np.int32)
        self._positions = np.zeros(limits.max_rows, np.int32)
        self._kv_segments = np.zeros((limits.max_segments, 4), np.int32)
        self._sample_rows = np.zeros(limits.max_samples, np.int32)
        self._flat = tables.reshape(-1)
        self._width = tables[0].size
        self._last: Batch | None = None  # for the sequences of ``_singles``, one row each
        self._singles: list[RunningRequest] = []
        self._order: list[RunningRequest] = []  # of the segments, in the order of their adapters
        self._ends: list[int] = []
        self._adapters: list[AdapterRows] = []
        self._counted: tuple[list[RunningRequest], int] = ([], 0)  # single rows, and the ranges of their adapters

    def forget(self) -> None:
        """Drop the references to adapters' handles."""
        self._last, self._singles = None, []
        self._order, self._ends, self._adapters = [], [], []
        self._counted = [], 0

    def adapters(self, singles: list[RunningRequest]) -> int:
        """Return the number of ranges of rows with adapters if each of ``singles`` has one row."""
        if singles != self._counted[0]:
            self._counted = singles, sum(len(uses) for uses, _ in groupby(singles, key=uses_of))
        return self._counted[1]

    def build(self, singles: list[RunningRequest], more: list[Work], slots: dict[RunningRequest, int]) -> Batch:
        """Return the batch of one sampled row of each of ``singles``, then ``more``; the next one overwrites it.

        slots: each sequence's place in the tables.
        """
        count = len(singles)
        positions = [sequence.computed for sequence in singles]
        segments = list(map(Segment, singles, range(count), range(1, count + 1), positions, repeat(1), repeat(0)))
        self._tokens[:count] = [sequence.last for sequence in singles]
        if not more and self._last is not None and singles == self._singles:
            self._positions[:count] = positions
            self._last.kv_segments[:, 2] = self._positions[:count]
            return Batch(segments, *self._last[1:])
        batch = self._build(segments, positions, more, slots)
        self._last, self._singles = (None, []) if more else (batch, list(singles))
        return batch

    def _build(
        self, segments: list[Segment], positions: list[int], more: list[Work], slots: dict[RunningRequest, int]
    ) -> Batch:
        row = first = len(segments)
        tokens: list[int] = []
        sampled = list(range(row))
        for sequence, rows, sampled_rows, known in more:
            begin = sequence.computed
            known_end = min(begin + rows, sequence.length)
            tokens += sequence.tokens[begin:known_end].tolist()
            tokens += sequence.draft[: begin + rows - known_end]
            positions += range(begin, begin + rows)
            segments.append(Segment(sequence, row, row + rows, begin, sampled_rows, known))
            row += rows
            sampled += range(row - sampled_rows, row)
        self._tokens[first:row] = tokens
        self._positions[:row] = positions
        sample_rows = self._sample_rows[: len(sampled)]
        sample_rows[:] = sampled
        kv_segments = self._kv_segments[: len(segments)]
        kv_segments[:] = [(s.row_begin, s.row_end, s.pos0, slots[s.sequence] * self._width) for s in segments]
        return Batch(
            segments,
            self._tokens[:row],
            self._positions[:row],
            kv_segments,
            self._flat,
            sample_rows,
            self._rows_of_adapters(segments),
        )

    def _rows_of_adapters(self, segments: list[Segment]) -> list[AdapterRows]:
        if any(map(is_split, segments)):  # depends on positions too
            self._order = []
            return adapter_rows(segments)
        order = [segment.sequence for segment in segments]
        ends = [segment.row_end for segment in segments]
        if order != self._order or ends != self._ends:
            self._order, self._ends, self._adapters = order, ends, adapter_rows(segments)
        return self._adapters
