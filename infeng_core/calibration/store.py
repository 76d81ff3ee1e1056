"""Hidden states of calibration text: in memory while they are few, else in files without a name."""

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

IN_MEMORY = 512 << 20


class Store:
    """Keeps copies of arrays, ``most`` bytes of them at a time in memory."""

    def __init__(self, most: int = IN_MEMORY) -> None:
        """Begin with nothing."""
        self._free = most

    def keep(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a copy that is only read; raises ResourceError where the disk has no room for it."""
        if rows.nbytes <= self._free or rows.nbytes == 0:
            made = rows.copy()
            self._free -= made.nbytes
            weakref.finalize(made, self._release, made.nbytes).atexit = False
            return made
        return _on_disk(rows)

    def _release(self, nbytes: int) -> None:
        self._free += nbytes


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
