"""H64: the rotation of a linear's inputs, 64 at a time, that spreads outliers over all 64.

y = H (x / 8), H the Hadamard matrix of plus and minus ones, is orthogonal and its own inverse: (W R) (R x) = W x, and
the rows of W R are as long as those of W. Kernels rotate x before they round it (docs/numerics.md); W is rotated
here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SIZE = 64


def rotated(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (..., k) float32, k a multiple of 64, with every 64 columns rotated, by the same additions as in
    kernels."""
    made = values.astype(np.float32).reshape(-1, SIZE)
    made *= np.float32(1 / 8)
    stride = 1
    while stride < SIZE:
        pairs = made.reshape(-1, SIZE // (2 * stride), 2, stride)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        total = first + second
        np.subtract(first, second, out=second)
        first[...] = total
        stride *= 2
    return made.reshape(values.shape)
