"""Hidden states of calibration text: in memory while there is room, else in files without a name."""

from __future__ import annotations

import mmap
import tempfile
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import ResourceError
from infeng_core.files import cache_root
from infeng_core.formats.shards import write_all

IN_MEMORY = 2 << 30
SPARE = 4  # a block is used again for what leaves up to a quarter of it empty


class Store:
    """Keeps copies of arrays, ``most`` bytes of them at a time in memory.

    Memory is used again: pages that the operating system has to give anew cost more than the copy.
    """

    def __init__(self, most: int = IN_MEMORY) -> None:
        """Begin with nothing."""
        self._room = most
        self._idle: list[NDArray[np.uint8]] = []

    def keep(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a copy that is only read; raises ResourceError where the disk has no room for it."""
        if rows.nbytes == 0:
            return rows.copy()
        if (block := self._block(rows.nbytes)) is None:
            return _on_disk(rows)
        lease = _Lease(block, rows.shape)
        weakref.finalize(lease, self._idle.append, block).atexit = False
        made = np.asarray(lease)
        made[...] = rows
        return made

    def _block(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Return memory for ``nbytes`` that nobody uses; None if there is none left."""
        fitting = [block for block in self._idle if nbytes <= block.nbytes <= nbytes + nbytes // SPARE]
        if fitting:
            best = min(fitting, key=lambda block: block.nbytes)
            self._idle[:] = [block for block in self._idle if block is not best]
            return best
        while self._room < nbytes and self._idle:
            self._room += self._idle.pop().nbytes
        if self._room < nbytes:
            return None
        self._room -= nbytes
        return np.empty(nbytes, np.uint8)


class _Lease:
    """A block that arrays are in; it lives as long as the last view of them, unlike the first array."""

    def __init__(self, block: NDArray[np.uint8], shape: tuple[int, ...]) -> None:
        self._block = block
        self.__array_interface__ = {
            "version": 3,
            "typestr": "<f4",
            "shape": shape,
            "data": (block.ctypes.data, False),
        }


def release(rows: NDArray[Any]) -> None:
    """Let go of the pages of an array that a store keeps on disk; whoever reads it later gets them again."""
    base: Any = rows
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


def _on_disk(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    folder = cache_root()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Written, not mapped and filled: a map of a file that the disk cannot hold would end the process.
        with tempfile.TemporaryFile(dir=folder, prefix=".calibration-", buffering=0) as file:
            write_all(file.write, np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
            return np.memmap(file, np.float32, "r", shape=rows.shape)
    except OSError as error:
        why = f"hidden states of the calibration text cannot be written ({error.strerror})"
        raise ResourceError(f"{folder}", why, "free some space, or set INFENG_CACHE to another place") from None
