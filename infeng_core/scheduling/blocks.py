"""Paged key/value blocks: which block belongs to whom, and how many there are. Their bytes belong to the backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import ResourceError

BLOCK_TOKENS = 16
"""Positions in one block: a line of the native cache layout holds 16 tokens."""

AUTO_SEQUENCES = 8
"""``kv_cache.memory: auto`` has room for this many sequences of full context (or max_running, if fewer) ..."""

AUTO_SHARE = 0.25
"""... as long as it takes no more than this share of the memory that is available when the engine starts."""


def blocks_for(tokens: int) -> int:
    """Return the number of blocks that hold ``tokens`` positions."""
    return -(-tokens // BLOCK_TOKENS)


class BlockPool:
    """Block ids that are free. A block is handed out to one owner and comes back once.

    The block that came back last is handed out first, so that a lightly used engine touches little of its cache memory.
    """

    def __init__(self, total: int) -> None:
        """Manage blocks 0 to ``total`` - 1, all free."""
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._used = np.zeros(total, bool)

    @property
    def free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    def allocate(self, count: int) -> NDArray[np.int32]:
        """Return ``count`` block ids, (count,) int32; raises ResourceError where fewer are free."""
        if count > len(self._free):
            raise ResourceError("kv cache", f"{count} blocks wanted, {len(self._free)} of {self.total} are free")
        split = len(self._free) - count
        blocks = np.array(self._free[split:][::-1], np.int32)
        del self._free[split:]
        self._used[blocks] = True
        return blocks

    def release(self, blocks: NDArray[np.int32]) -> None:
        """Take blocks back; raises ValueError for one that is not in use."""
        if not self._used[blocks].all():
            raise ValueError(f"block released twice: {blocks[~self._used[blocks]].tolist()}")
        self._used[blocks] = False
        self._free.extend(blocks[::-1].tolist())


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
    memory: int | Literal["auto"], *, block_bytes: int, context: int, max_running: int, available_bytes: int | None
) -> CacheSize:
    """Return how many blocks an engine gets.

    memory: ``kv_cache.memory`` of the manifest: bytes or "auto".
    block_bytes: bytes of one block in all layers.
    context: most positions of one sequence.
    available_bytes: memory that can be had without swapping; None if unknown.

    Raises ResourceError where not even one block fits, or where more is asked for than there is.
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
        wanted = CacheSize(sequences * blocks_for(context), f"{sequences} sequences of {context} tokens")
        if available_bytes is not None and wanted.blocks * block_bytes > available_bytes * AUTO_SHARE:
            blocks = int(available_bytes * AUTO_SHARE) // block_bytes
            wanted = CacheSize(blocks, f"{AUTO_SHARE:.0%} of {available_bytes / 1e9:.1f} GB available memory")
    if wanted.blocks < 1:
        raise ResourceError(
            "kv cache",
            f"not one block of {BLOCK_TOKENS} tokens ({block_bytes} bytes) fits ({wanted.reason})",
            "set kv_cache.memory to more, or kv_cache.dtype to int8",
        )
    return wanted
