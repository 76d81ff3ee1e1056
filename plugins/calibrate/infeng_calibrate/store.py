"""Hidden states of calibration text: in memory while there is room, else in unnamed temporary files."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
import weakref
from typing import Any

import numpy as np
from infeng_convert.api import write_all
from numpy.typing import NDArray

from infeng_core.api import ResourceError, cache_root

IN_MEMORY = 2 << 30
ALIGNED = 64


class Store:
    """Keeps copies of arrays, up to ``most`` bytes of them in memory.

    Memory is reused: fresh pages, which the operating system clears, cost more than the copy.
    """

    def __init__(self, most: int = IN_MEMORY) -> None:
        """Start empty; memory is mapped with the first array."""
        self._holes = [(0, most)]  # free ranges of bytes (begin, end), ascending
        self._arena: mmap.mmap | None = None
        self._most = most

    def keep(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a copy, to be read only; raises ResourceError if the disk has no room for it."""
        size = -(-rows.nbytes // ALIGNED) * ALIGNED
        begin = next((begin for begin, end in self._holes if end - begin >= size > 0), None)
        if begin is None:
            return _on_disk(rows) if size else rows.copy()
        self._holes = [(low + size if low == begin else low, high) for low, high in self._holes]
        if self._arena is None:
            self._arena = mmap.mmap(-1, self._most, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(OSError):  # a kernel without huge pages
                self._arena.madvise(mmap.MADV_HUGEPAGE)
        lease = _Lease(np.frombuffer(self._arena, np.float32, rows.size, begin).reshape(rows.shape))
        weakref.finalize(lease, self._give_back, begin, begin + size).atexit = False
        made = np.asarray(lease)
        made[...] = rows
        return made

    def _give_back(self, begin: int, end: int) -> None:
        joined: list[tuple[int, int]] = []
        for low, high in sorted([*self._holes, (begin, end)]):
            if joined and joined[-1][1] == low:
                joined[-1] = joined[-1][0], high
            elif low < high:
                joined.append((low, high))
        self._holes = joined


class _Lease:
    """A range of the memory, which lives as long as the last view of it; the first array may end earlier."""

    def __init__(self, part: NDArray[np.float32]) -> None:
        self._part = part
        self.__array_interface__ = part.__array_interface__


def release(rows: NDArray[Any]) -> None:
    """Release the pages of an array that a store keeps on disk; a later read loads them again."""
    base: Any = rows
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


def _on_disk(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    folder = cache_root()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Written, not mapped and filled: a mapped write to a full disk would kill the process (SIGBUS).
        with tempfile.TemporaryFile(dir=folder, prefix=".calibration-", buffering=0) as file:
            write_all(file.write, np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
            return np.memmap(file, np.float32, "r", shape=rows.shape)
    except OSError as error:
        why = f"hidden states of the calibration text cannot be written ({error.strerror})"
        raise ResourceError(f"{folder}", why, "free some space, or set INFENG_CACHE to another place") from None
