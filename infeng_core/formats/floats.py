"""Conversion between float32 and the shorter floats of files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def widened(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return float16, float32 (themselves) or, in uint16, bf16 values as float32, which holds all of them exactly."""
    if array.dtype == np.uint16:
        bits = array.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    return array.astype(np.float32, copy=False)


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the upper halves of the values, rounded to nearest even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
