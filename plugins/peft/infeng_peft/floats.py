"""Floats of 16 bits, as adapters store them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the upper halves of the values, rounded to nearest even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
