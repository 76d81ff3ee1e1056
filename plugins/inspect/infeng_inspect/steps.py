"""The steps of a case: the rows of sequences, and the batch that a program gets for them.

A case is the fields of a problem (``problems.py``) and, beside them, the fields of ``BESIDES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api.kernels import Pool, Program, native, problems

BLOCK = 16  # rows of a panel, positions of a cache block
WINDOW = 40  # positions, where a case needs a window and does not say which
BEYOND = 3  # buffers that are read by an index have this many rows more than the index names

BESIDES = {"gather": "row_gather", "window": "window", "rot": None}
"""problems.Fields of a case that a problem does not have, and the need that follows where one is not zero.

gather: rmsnorm reads rows by an index, in no order and some of them twice. window: attention sees so many positions
(0: all). rot: rope turns so many columns of a head (0: all).
"""

Batch = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]
Sequences = Sequence[tuple[int, int]]
"""The rows of a step: (rows, first position) of each sequence."""


def asked(case: problems.Fields) -> problems.Fields:
    """Return the problem of a case: without the fields of ``BESIDES``, with the needs that follow from them."""
    needs = {*case.get("needs", ()), *(need for name, need in BESIDES.items() if need and case.get(name))}
    rest = {name: value for name, value in case.items() if name not in BESIDES}
    return {**rest, "needs": sorted(needs)}


class Steps:
    """The steps of a case, and the sequences whose rows they are."""

    def __init__(self, case: problems.Fields, steps: Sequence[Sequences]) -> None:
        """Count the rows and positions."""
        needs = asked(case)["needs"]
        self.is_gathered = "row_gather" in needs
        self.window: int = case.get("window", WINDOW) if "window" in needs else 0
        self.rows = [sum(rows for rows, _ in step) for step in steps]
        self.most = max(self.rows)
        lengths: dict[int, int] = {}
        for step in steps:
            for index, (rows, begin) in enumerate(step):
                lengths[index] = max(lengths.get(index, 0), begin + rows)
        self.lengths = list(lengths.values())
        """Positions of each sequence."""
        self.context: int = max(*self.lengths, case.get("context", 0), self.most + BEYOND)

    @property
    def blocks(self) -> list[int]:
        """The blocks of the cache that each sequence has."""
        return [up(length) // BLOCK for length in self.lengths]

    def program(self, pool: Pool, device: native.Device | None = None) -> Program:
        """Return a program with room for every step."""
        rows = self.most + BEYOND if self.is_gathered else self.most
        segments = len(self.lengths)
        most: dict[str, Any] = {"max_rows": rows, "max_samples": self.most, "max_segments": segments}
        return Program(pool, **most, context=self.context, device=device)

    def batch(self, step: Sequences, vocabulary: int = 1, *, is_op: bool = True) -> Batch:
        """Return tokens, positions, segments, block tables and sampled rows of a step.

        is_op: the op of the case may not need all blocks of its sequences.
        """
        blocks = self.blocks
        segments, row = [], 0
        for index, (rows, begin) in enumerate(step):
            if rows:
                segments.append((row, row + rows, begin, sum(blocks[:index])))
            row += rows
        positions = np.concatenate([np.arange(p, p + e - b, dtype=np.int32) for b, e, p, _ in segments])
        samples = np.zeros(0, np.int32)
        if self.is_gathered:
            samples = (5 * np.arange(row, dtype=np.int32) + 2) % (row + BEYOND)
            samples[2::3] = samples[0]
            positions, segments = np.arange(row + BEYOND, dtype=np.int32), []
        tokens = 7 * np.arange(len(positions), dtype=np.int32) % vocabulary
        # Blocks are numbered backwards, so that a kernel that ignores the table is detected.
        tables = np.arange(sum(blocks), dtype=np.int32)[::-1].copy()
        for _, _, begin, table in segments if self.window and is_op else ():  # earlier positions need no blocks
            tables[table : table + max(begin - self.window + 1, 0) // BLOCK] = -1
        return tokens, positions, np.array(segments, np.int32).reshape(-1, 4), tables, samples


def up(size: int) -> int:
    """Return how many whole blocks ``size`` rows or positions take."""
    return -(-size // BLOCK) * BLOCK
