"""The rotation of a linear's inputs that spreads outliers over all inputs of a block.

Inputs become y = H x f with the Hadamard matrix H of plus and minus ones over blocks of B inputs and a power of two f:
1/8 for blocks of 64 and 128, 1/16 for 256. Weights become W H / (B f), so (W H / (B f)) y = W x. Kernels rotate inputs
before they round them (docs/numerics.md); weights are rotated here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SIZE = 64
"""The block of formats with a scale for each 64, 128 or 256 inputs."""
LARGEST = 256

_INPUTS = {64: 1 / 8, 128: 1 / 8, 256: 1 / 16}


def largest_block(k: int) -> int:
    """Return the largest of 256, 128 and 64 that divides ``k``; 0 if none does."""
    return next((block for block in (LARGEST, 128, SIZE) if k % block == 0), 0)


def rotated(weights: NDArray[np.float32], block: int = SIZE) -> NDArray[np.float32]:
    """Return weights (..., k) for inputs that are rotated in blocks of ``block``, which divides k."""
    return _times_hadamard(weights, block, 1 / (block * _INPUTS[block]))


def rotated_inputs(values: NDArray[np.float32], block: int = SIZE) -> NDArray[np.float32]:
    """Return inputs (..., k) rotated by the same additions as in kernels. It also undoes ``rotated``."""
    return _times_hadamard(values, block, _INPUTS[block])


def _times_hadamard(values: NDArray[np.float32], block: int, factor: float) -> NDArray[np.float32]:
    made = values.astype(np.float32).reshape(-1, block)
    made *= np.float32(factor)
    stride = 1
    while stride < block:
        pairs = made.reshape(-1, block // (2 * stride), 2, stride)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        total = first + second
        np.subtract(first, second, out=second)
        first[...] = total
        stride *= 2
    return made.reshape(values.shape)
