"""What 8-bit integers do to numbers: the numerical model of quantized activations and of the int8 cache.

A group of numbers shares one scale, its largest magnitude over 127; each becomes the nearest whole multiple of it. The
functions compute in the type of their input, so that a caller can have the model without binary32 rounding on top.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

ACTIVATION_GROUP = 64  # inputs of a linear that share a scale
Float = TypeVar("Float", bound=np.floating)
SMALLEST = 2.0**-100  # below it a group counts as zero, so that 127 / amax cannot overflow


def quantize(x: NDArray[np.floating]) -> tuple[NDArray[np.int8], NDArray[np.floating]]:
    """Quantize the last axis as one group: x (..., g) -> q (..., g) int8 and scale (..., 1), with x about q * scale."""
    largest = np.abs(x).max(axis=-1, keepdims=True)  # (..., 1)
    scale = np.where(largest < SMALLEST, 0, largest / 127)  # (..., 1)
    steps = np.divide(x, scale, out=np.zeros_like(x), where=scale > 0)  # (..., g), within +-127
    return np.rint(steps).astype(np.int8), scale


def round_to_int8(x: NDArray[Float]) -> NDArray[Float]:
    """Return x (..., g) with the last axis rounded to the 255 values that its int8 form can hold."""
    q, scale = quantize(x)
    rounded: NDArray[Float] = q * scale
    return rounded


def round_activations(x: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return x (rows, k) rounded to int8 in groups of 64 along k; the last group may be shorter."""
    groups = [round_to_int8(x[:, k : k + ACTIVATION_GROUP]) for k in range(0, x.shape[1], ACTIVATION_GROUP)]
    return np.concatenate(groups, axis=1)
