"""Paged key/value blocks: which block belongs to whom, and how many there are. Their bytes belong to the backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.batch import BLOCK_TOKENS as BLOCK_TOKENS
from infeng_core.errors import ResourceError

AUTO_SEQUENCES = 8
"""``kv_cache.memory: auto`` has room for this many sequences of full context (or max_running, if fewer) ..."""

AUTO_SHARE = 0.25
"""... as long as it takes no more than this share of the memory that is available when the engine starts."""


FEW = 64
"""Up to so many blocks a loop is faster than array operations."""


def blocks_for(tokens: int) -> int:
    """Return the number of blocks that hold ``tokens`` positions."""
    return -(-tokens // BLOCK_TOKENS)


class Watcher(Protocol):
    """Keeps blocks for later, and wants to know which of them have other holders."""

    def shared(self, blocks: list[int]) -> None:
        """Take blocks that had one reference and have more now. Some may not be the watcher's."""

    def alone(self, blocks: list[int]) -> None:
        """Take blocks that had more references and have one now, if any. Some may not be the watcher's."""


class BlockPool:
    """Block ids and how many hold each of them. A block without holders is free.

    The block that became free last is handed out first, so that a lightly used engine touches little of its cache
    memory. Calls with a few blocks, as for one that a sequence grows by, keep out of NumPy: its overhead is larger.
    """

    def __init__(self, total: int) -> None:
        """Manage blocks 0 to ``total`` - 1, all free."""
        self.total = total
        self.watcher: Watcher | None = None
        """Hears of blocks that get a second reference, or lose all but one; of one block perhaps twice in a call."""
        self._references = np.zeros(total, np.int32)  # (total,) holders of each block
        self._stack = np.arange(total - 1, -1, -1, dtype=np.int32)  # (total,) the free ones are the first
        self._free = total
        self._places = np.zeros(total, np.intp)  # (total,) of release: where in the call a block stands
        # The same memory, for single elements: four times as fast as an array's.
        self._reference = self._references.data
        self._stacked = self._stack.data

    @property
    def free(self) -> int:
        """Blocks that can be allocated now."""
        return self._free

    def references(self, block: int) -> int:
        """Return how many hold a block."""
        if not 0 <= block < self.total:
            raise ValueError(f"no such block: {block} of {self.total}")
        return self._reference[block]

    def allocate(self, count: int) -> NDArray[np.int32]:
        """Return ``count`` block ids, (count,) int32, with one reference each.

        Raises ResourceError where fewer are free, ValueError for a negative count.
        """
        left = self._free - count
        if left < 0:
            raise ResourceError("kv cache", f"{count} blocks wanted, {self._free} of {self.total} are free")
        if count < 0:
            raise ValueError(f"no number of blocks: {count}")
        blocks = self._stack[left : self._free][::-1].copy()
        if count <= FEW:
            for block in blocks.tolist():
                self._reference[block] = 1
        else:
            self._references[blocks] = 1
        self._free = left
        return blocks

    def retain(self, blocks: NDArray[np.int32]) -> None:
        """Add a reference to each of the blocks, (count,) int32; raises ValueError, and adds none, if one is free."""
        shared = self._retain_few(blocks.tolist()) if len(blocks) <= FEW else self._retain_many(blocks)
        if shared and self.watcher is not None:
            self.watcher.shared(shared)

    def release(self, blocks: NDArray[np.int32]) -> None:
        """Take a reference from each of the blocks, (count,) int32; blocks without holders are free.

        Raises ValueError, and takes none, where a block has fewer references than the call takes.
        """
        alone = self._release_few(blocks.tolist()) if len(blocks) <= FEW else self._release_many(blocks)
        if alone and self.watcher is not None:
            self.watcher.alone(alone)

    def _retain_few(self, blocks: list[int]) -> list[int]:
        reference, total = self._reference, self.total
        for block in blocks:
            if not 0 <= block < total or reference[block] == 0:
                raise ValueError(f"block not in use: {block}")
        shared = []
        for block in blocks:
            if reference[block] == 1:
                shared.append(block)
            reference[block] += 1
        return shared

    def _retain_many(self, blocks: NDArray[np.int32]) -> list[int]:
        held = self._held(blocks)
        if not held.all():
            raise ValueError(f"block not in use: {blocks[held == 0].tolist()}")
        np.add.at(self._references, blocks, 1)
        shared: list[int] = blocks[held == 1].tolist()
        return shared

    def _release_few(self, blocks: list[int]) -> list[int]:
        reference, total, free = self._reference, self.total, self._free
        alone = []
        for done, block in enumerate(reversed(blocks)):
            if not 0 <= block < total or reference[block] == 0:
                for taken in blocks[len(blocks) - done :]:
                    reference[taken] += 1
                raise ValueError(f"block released twice: {block}")
            left = reference[block] = reference[block] - 1
            if left == 0:
                self._stacked[free] = block
                free += 1
            elif left == 1:
                alone.append(block)
        self._free = free
        return alone

    def _release_many(self, blocks: NDArray[np.int32]) -> list[int]:
        before = self._held(blocks)
        np.subtract.at(self._references, blocks, 1)
        held = self._references[blocks]
        if held.min() < 0:
            np.add.at(self._references, blocks, 1)
            raise ValueError(f"block released twice: {blocks[held < 0].tolist()}")
        freed = blocks[held == 0][::-1]
        places = np.arange(len(freed))
        self._places[freed] = places
        freed = freed[self._places[freed] == places]  # once each
        self._stack[self._free : self._free + len(freed)] = freed
        self._free += len(freed)
        alone: list[int] = blocks[(before > 1) & (held <= 1)][::-1].tolist()
        return alone

    def _held(self, blocks: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the references of blocks; raises ValueError where one does not exist."""
        if blocks.min() < 0 or blocks.max() >= self.total:
            raise ValueError(f"no such block among {blocks.min()} to {blocks.max()}: there are {self.total}")
        return self._references[blocks]


@dataclass(frozen=True, slots=True)
class CacheSize:
    """How large the cache is and what bounds it."""

    blocks: int
    reason: str

    @property
    def tokens(self) -> int:
        """Positions that fit, of all sequences together."""
        return self.blocks * BLOCK_TOKENS


def size(
    memory: int | Literal["auto"],
    *,
    block_bytes: int,
    context: int,
    max_running: int,
    available_bytes: int | None,
    groups: int = 1,
    each: int | None = None,
) -> CacheSize:
    """Return how many blocks an engine gets.

    memory: ``kv_cache.memory`` of the manifest: bytes or "auto".
    block_bytes: bytes of one block.
    context: most positions of one sequence.
    available_bytes: memory that can be had without swapping; None if unknown.
    groups: of layers, each of which needs blocks.
    each: blocks that a sequence of full context has at a time; None: as many as its positions need.

    Raises ResourceError where not even one block for each group fits, or where more is asked for than there is.
    """
    if isinstance(memory, int):
        if available_bytes is not None and memory > available_bytes:
            raise ResourceError(
                "kv cache",
                f"kv_cache.memory is {memory} bytes and {available_bytes} are available",
                "set kv_cache.memory to less, or to auto",
            )
        wanted = CacheSize(memory // block_bytes, f"kv_cache.memory is {memory} bytes")
    else:
        sequences = min(max_running, AUTO_SEQUENCES)
        each = blocks_for(context) if each is None else each
        wanted = CacheSize(sequences * each, f"{sequences} sequences of {context} tokens")
        if available_bytes is not None and wanted.blocks * block_bytes > available_bytes * AUTO_SHARE:
            blocks = int(available_bytes * AUTO_SHARE) // block_bytes
            wanted = CacheSize(blocks, f"{AUTO_SHARE:.0%} of {available_bytes / 1e9:.1f} GB available memory")
    if wanted.blocks < groups:
        raise ResourceError(
            "kv cache",
            f"not one block of {BLOCK_TOKENS} tokens ({groups * block_bytes} bytes) fits ({wanted.reason})",
            "set kv_cache.memory to more, or kv_cache.dtype to int8",
        )
    return wanted
