"""Memory for tensors, aligned as their files are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ALIGN = 64


def aligned_bytes(count: int) -> NDArray[np.uint8]:
    """Return ``count`` bytes that start on a 64-byte boundary."""
    spare: NDArray[np.uint8] = np.empty(count + ALIGN, np.uint8)
    start = -spare.ctypes.data % ALIGN
    return spare[start : start + count]
