"""The tables of blocks of running sequences, a line for each group of layers.

Groups that see all ("wide") have the blocks of a sequence's whole length. Groups with a window ("near") have the
blocks that a later row may see, and of a long prompt the blocks that the next steps write; the entries before and
behind are -1. What lies before the window goes back to the pool after each step that was committed.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np
from numpy.typing import NDArray

from infeng_core.batch import BLOCK_TOKENS, Limits, RunningRequest
from infeng_core.scheduling.blocks import BlockPool, blocks_for


class Needs:
    """How many blocks sequences need by their lengths."""

    def __init__(self, windows: Several[int], max_rows: int) -> None:
        """Count for groups of layers with these ``windows`` (0: they see all) and steps of up to ``max_rows`` rows."""
        self.window = max(windows)
        """The widest window of a layer; 0: there are none."""
        self.near = sum(window > 0 for window in windows)
        """Groups with a window."""
        self.wide = len(windows) - self.near
        """Groups that see all."""
        self.groups = len(windows)
        # Blocks from ``first`` on that hold the window of any position, and the rows of the largest step behind it.
        self._most_near = blocks_for(self.window + 2 * BLOCK_TOKENS - 3 + max_rows)

    def first(self, computed: int) -> int:
        """Return the first block that rows from the block of position ``computed`` on see, in groups with a window.

        From the block's beginning, so that what was computed can be gone on from at its last whole block.
        """
        return max(0, computed // BLOCK_TOKENS * BLOCK_TOKENS - self.window + 1) // BLOCK_TOKENS

    def end(self, first: int, size: int) -> int:
        """Return where the blocks of a group with a window end: those from ``first`` on, of ``size``."""
        return min(size, first + self._most_near)

    def most(self, tokens: int) -> int:
        """Return how many blocks a sequence of so many tokens has at a time."""
        size = blocks_for(tokens)
        return self.wide * size + self.near * self.end(0, size)

    def to_start(self, tokens: int, shared: int) -> int:
        """Return how many blocks a sequence takes that starts with its first ``shared`` blocks computed."""
        size = blocks_for(tokens)
        if not self.near:
            return size - shared
        end = self.end(self.first(BLOCK_TOKENS * shared), size)
        return self.wide * (size - shared) + self.near * (end - shared)

    def longest(self, blocks: int) -> int | None:
        """Return how many tokens a sequence can have that has ``blocks`` for itself; None: any number."""
        size = blocks // self.groups
        if self.near and size >= self._most_near:
            if not self.wide:
                return None
            size = (blocks - self.near * self._most_near) // self.wide
        return BLOCK_TOKENS * size


class Tables:
    """Takes blocks for sequences as they grow, and gives back what they have left behind."""

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        """Make room for the slots of ``limits``; blocks come from ``pool``."""
        self.needs = Needs(limits.windows, limits.max_rows)
        self.lines = np.zeros((limits.max_segments, self.needs.groups, blocks_for(limits.context)), np.int32)
        """(slots, groups, blocks of the longest context)."""
        self._pool = pool

    def start(self, sequence: RunningRequest, slot: int, shared: NDArray[np.int32]) -> None:
        """Take a slot for a sequence that begins with blocks that are retained for it.

        shared: (blocks,), or where there are windows (groups, blocks) with -1 before them.
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
        """Take blocks until a sequence has ``size``, in groups with a window those of them that it can use by now."""
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
        """Return whether a sequence has blocks that no window of a row to come reaches."""
        return self.needs.first(sequence.computed) > sequence.near[0]

    def leave(self, sequence: RunningRequest) -> None:
        """Give those blocks back."""
        begin, end = sequence.near
        first = self.needs.first(sequence.computed)
        left = sequence.tables[self.needs.wide :, begin:first]
        self._pool.release(left.ravel())
        left[:] = -1
        sequence.near = first, end

    def release(self, sequence: RunningRequest) -> None:
        """Give all blocks of a sequence back."""
        self._pool.release(held(sequence.tables) if self.needs.near else sequence.blocks)
        sequence.forget_blocks()

    def _show(self, sequence: RunningRequest, lines: NDArray[np.int32], size: int) -> None:
        sequence.blocks = lines[0, :size]
        if self.needs.near:
            sequence.tables = lines[:, :size]


def held(blocks: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the blocks of a table, (n,), those of one with windows without its holes."""
    return blocks if blocks.ndim == 1 else blocks[blocks >= 0]
