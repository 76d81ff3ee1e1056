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
