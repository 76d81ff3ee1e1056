"""Hidden states of calibration text: in memory while they are few, else in files without a name."""

from __future__ import annotations

import os
import tempfile
import weakref

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import ResourceError
from infeng_core.files import cache_root

IN_MEMORY = 512 << 20


class Store:
    """Keeps copies of arrays, ``most`` bytes of them at a time in memory."""

    def __init__(self, most: int = IN_MEMORY) -> None:
        """Begin with nothing."""
        self._free = most

    def keep(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a copy; raises ResourceError where the disk has no room for it."""
        if rows.nbytes <= self._free or rows.nbytes == 0:
            made = rows.copy()
            self._free -= made.nbytes
            weakref.finalize(made, self._release, made.nbytes).atexit = False
            return made
        made = _on_disk(rows.shape)
        made[...] = rows
        return made

    def _release(self, nbytes: int) -> None:
        self._free += nbytes


def _on_disk(shape: tuple[int, ...]) -> NDArray[np.float32]:
    folder = cache_root()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, prefix=".calibration-") as file:
            # Reserved, for a map of a file that the disk cannot hold ends the process when it is written to.
            os.posix_fallocate(file.fileno(), 0, 4 * int(np.prod(shape)))
            return np.memmap(file, np.float32, "r+", shape=shape)
    except OSError as error:
        why = f"hidden states of the calibration text cannot be written ({error.strerror})"
        raise ResourceError(f"{folder}", why, "free some space, or set INFENG_CACHE to another place") from None
