"""Rotations by Hadamard matrices, which spread outliers over all numbers that are rotated together.

Ashkboos et al., "QuaRot" (2024). Functions compute in the type of their input.
"""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Float = TypeVar("Float", bound=np.floating)


@cache
def hadamard(size: int) -> NDArray[np.float64]:
    """Return Sylvester's matrix of +-1 in blocks of the largest power of two that divides ``size``, (size, size)."""
    block = size & -size
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.kron(np.eye(size // block), matrix).astype(np.float64)


def rotate(x: NDArray[Float]) -> NDArray[Float]:
    """Return H x of the last axis; H is symmetric and H H = block."""
    rotated: NDArray[Float] = x @ hadamard(x.shape[-1]).astype(x.dtype)
    return rotated


def unrotated(x: NDArray[Float]) -> NDArray[Float]:
    """Invert ``rotate``."""
    return rotate(x) / x.dtype.type(x.shape[-1] & -x.shape[-1])


def rotate_blocks(x: NDArray[Float], block: int) -> NDArray[Float]:
    """Return x (rows, k), each ``block`` along k times an orthogonal Hadamard matrix, which is its own inverse.

    Kernels take a power of two instead of the square root of 128; the scale of a row takes that difference out again.
    """
    turned = rotate(x.reshape(-1, block)) / x.dtype.type(np.sqrt(block))
    return turned.reshape(x.shape)
