"""The block tables of running sequences, one row for each group of layers.

Groups with full attention ("wide") have the blocks of a sequence's whole length. Groups with a window ("near") have
the blocks that a later row may see, and for a long prompt the blocks that the next steps write; the other entries are
-1. Blocks before the window return to the pool after each committed step.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np
from numpy.typing import NDArray

from infeng_core.batch import BLOCK_TOKENS, Limits, RunningRequest
from infeng_core.scheduling.blocks import BlockPool, blocks_for


class Needs:
    """The number of blocks that sequences need by their lengths."""

    def __init__(self, windows: Several[int], max_rows: int) -> None:
        """Count for groups of layers with these ``windows`` (0: full attention) and steps of up to ``max_rows``
        rows."""
        self.window = max(windows)
        """The widest window of a layer; 0: there are none."""
        self.near = sum(window > 0 for window in windows)
        """Groups with a window."""
        self.wide = len(windows) - self.near
        """Groups with full attention."""
        self.groups = len(windows)
        # The number of blocks from ``first`` on that hold the window of any position, and the rows of the largest step.
        self._most_near = blocks_for(self.window + 2 * BLOCK_TOKENS - 3 + max_rows)

    def first(self, computed: int) -> int:
        """Return the first block that rows from the block of position ``computed`` on see, in groups with a window.

        It counts from the block's beginning, so that computation can continue at the last whole block.
        """
        return max(0, computed // BLOCK_TOKENS * BLOCK_TOKENS - self.window + 1) // BLOCK_TOKENS

    def end(self, first: int, size: int) -> int:
        """Return the end of the blocks of a group with a window: from ``first`` on, up to ``size``."""
        return min(size, first + self._most_near)

    def most(self, tokens: int) -> int:
        """Return the most blocks at a time of a sequence with ``tokens`` tokens."""
        size = blocks_for(tokens)
        return self.wide * size + self.near * self.end(0, size)

    def to_start(self, tokens: int, shared: int) -> int:
        """Return how many blocks a sequence takes at its start with its first ``shared`` blocks computed."""
        size = blocks_for(tokens)
        if not self.near:
            return size - shared
        end = self.end(self.first(BLOCK_TOKENS * shared), size)
        return self.wide * (size - shared) + self.near * (end - shared)

    def longest(self, blocks: int) -> int | None:
        """Return the longest sequence for which ``blocks`` suffice, in tokens; None: no limit."""
        size = blocks // self.groups
        if self.near and size >= self._most_near:
            if not self.wide:
                return None
            size = (blocks - self.near * self._most_near) // self.wide
        return BLOCK_TOKENS * size


class Tables:
    """Allocates blocks for growing sequences, and frees blocks behind their windows."""

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        """Allocate tables for the slots of ``limits``; blocks come from ``pool``."""
        self.needs = Needs(limits.windows, limits.max_rows)
        self.lines = np.zeros((limits.max_segments, self.needs.groups, blocks_for(limits.context)), np.int32)
        """(slots, groups, blocks of the longest context)."""
        self._pool = pool

    def start(self, sequence: RunningRequest, slot: int, shared: NDArray[np.int32]) -> None:
        """Take a slot for a sequence that starts with retained blocks.

        shared: (blocks,), or with windows (groups, blocks) with -1 before them.
        """
        lines, count = self.lines[slot], shared.shape[-1]
        lines[:, :count] = shared
        if self.needs.near:
            sequence.near = self.needs.first(BLOCK_TOKENS * count), count
        self._show(sequence, lines, count)

    def lacking(self, sequence: RunningRequest, size: int) -> int:
        """Return how many blocks ``extend`` takes."""
        needs, have = self.needs, sequence.blocks.size
        if not needs.near:
            return size - have
        begin, end = sequence.near
        return needs.wide * (size - have) + needs.near * (needs.end(begin, size) - end)

    def extend(self, sequence: RunningRequest, slot: int, size: int) -> None:
        """Allocate blocks until a sequence has ``size``; groups with a window get only the ones that it can use by
        now."""
        needs, lines, have = self.needs, self.lines[slot], sequence.blocks.size
        blocks = self._pool.allocate(self.lacking(sequence, size))
        if not needs.near:
            lines[0, have:size] = blocks
        else:
            begin, end = sequence.near
            fresh = needs.wide * (size - have)
            if needs.wide:
                lines[: needs.wide, have:size] = blocks[:fresh].reshape(needs.wide, -1)
            lines[needs.wide :, have:size] = -1
            lines[needs.wide :, end : needs.end(begin, size)] = blocks[fresh:].reshape(needs.near, -1)
            sequence.near = begin, needs.end(begin, size)
        self._show(sequence, lines, size)

    def is_beyond(self, sequence: RunningRequest) -> bool:
        """Return whether a sequence has blocks that no window of a later row reaches."""
        return self.needs.first(sequence.computed) > sequence.near[0]

    def leave(self, sequence: RunningRequest) -> None:
        """Free those blocks."""
        begin, end = sequence.near
        first = self.needs.first(sequence.computed)
        left = sequence.tables[self.needs.wide :, begin:first]
        self._pool.release(left.ravel())
        left[:] = -1
        sequence.near = first, end

    def release(self, sequence: RunningRequest) -> None:
        """Free all blocks of a sequence."""
        self._pool.release(held(sequence.tables) if self.needs.near else sequence.blocks)
        sequence.forget_blocks()

    def _show(self, sequence: RunningRequest, lines: NDArray[np.int32], size: int) -> None:
        sequence.blocks = lines[0, :size]
        if self.needs.near:
            sequence.tables = lines[:, :size]


def held(blocks: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the blocks of a table, (n,), without the holes of one with windows."""
    return blocks if blocks.ndim == 1 else blocks[blocks >= 0]
