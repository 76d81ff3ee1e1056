"""Rounding to 8-bit integers: the numerical model of quantized activations and of the int8 cache.

A group of numbers shares one scale, its largest magnitude over 127; each number becomes the nearest multiple of it.
Functions compute in the type of their input, so that binary64 inputs get no additional binary32 rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .hadamard import Float, rotate_blocks

ACTIVATION_GROUP = 64  # inputs of a linear that share a scale
SPLIT = 256  # positions that attention adds up at a time
SMALLEST = 2.0**-100  # below it a group counts as zero, so that 127 / amax cannot overflow


def quantize(x: NDArray[np.floating]) -> tuple[NDArray[np.int8], NDArray[np.floating]]:
    """Quantize the last axis as one group: x (..., g) -> q (..., g) int8 and scale (..., 1), with x about q * scale."""
    largest = np.abs(x).max(axis=-1, keepdims=True)  # (..., 1)
    scale = np.where(largest < SMALLEST, 0, largest / 127)  # (..., 1)
    steps = np.divide(x, scale, out=np.zeros_like(x), where=scale > 0)  # (..., g), within +-127
    return np.rint(steps).astype(np.int8), scale


def round_to_int8(x: NDArray[Float]) -> NDArray[Float]:
    """Return x (..., g) with the last axis rounded to int8 multiples of its scale."""
    q, scale = quantize(x)
    rounded: NDArray[Float] = q * scale
    return rounded


def round_shares(shares: NDArray[Float], scale: NDArray[np.floating], most: int) -> NDArray[Float]:
    """Round shares (..., tokens) so that each, times its value's scale (tokens,), is an integer.

    The largest magnitude of a split is the integer ``most``.
    """
    r = shares * scale
    for begin in range(0, r.shape[-1], SPLIT):
        split = r[..., begin : begin + SPLIT]
        step = np.abs(split).max(axis=-1, keepdims=True) / most  # (..., 1)
        split[:] = np.rint(np.divide(split, step, out=np.zeros_like(split), where=step > 0)) * step
    rounded: NDArray[Float] = np.divide(r, scale, out=np.zeros_like(r), where=scale != 0)
    return rounded


@dataclass(frozen=True)
class Rounding:
    """The int8 rounding of a linear's inputs: how many share a scale, and how many are rotated together first."""

    group: int = ACTIVATION_GROUP
    block: int = 0


PLAIN = Rounding()


def round_activations(x: NDArray[np.floating], how: Rounding = PLAIN) -> NDArray[np.floating]:
    """Return x (rows, k) rounded to int8 in groups along k; the last group may be shorter.

    Rotated inputs are rotated back after the rounding, so that they fit unrotated weights.
    """
    turned = rotate_blocks(x, how.block) if how.block else x
    groups = [round_to_int8(turned[:, k : k + how.group]) for k in range(0, x.shape[1], how.group)]
    rounded = np.concatenate(groups, axis=1)
    return rotate_blocks(rounded, how.block) if how.block else rounded
