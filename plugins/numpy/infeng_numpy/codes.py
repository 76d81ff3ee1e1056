"""The codes of a cached head: 8 or 4 bits with one scale, optionally of rotated numbers.

A rotation spreads outliers over all elements of a head, so that one scale fits them better: Ashkboos et al., "QuaRot"
(2024). Functions compute in the type of their input.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .activations import SMALLEST, quantize

Array = NDArray[np.floating]
LEAST_BLOCK = 8  # smaller ones would not spread outliers


class Codes(Protocol):
    """An encoding of the last axis as bytes and one scale."""

    integers: bool

    def bytes_of(self, dim: int) -> int:
        """Return the bytes of the codes of ``dim`` numbers."""

    def encode(self, x: Array) -> tuple[NDArray[np.uint8], Array]:
        """Return codes (..., bytes) and scale (..., 1) of x (..., dim)."""

    def decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return (..., dim or more) numbers, to be multiplied by the scale."""


class Int8:
    """Integers in [-127, 127]."""

    integers = True

    def bytes_of(self, dim: int) -> int:
        """Return the bytes of the codes of ``dim`` numbers."""
        return dim

    def encode(self, x: Array) -> tuple[NDArray[np.uint8], Array]:
        """Return codes (..., dim) and scale (..., 1) of x (..., dim)."""
        q, scale = quantize(x)
        return q.view(np.uint8), scale

    def decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the integers (..., dim)."""
        return codes.view(np.int8).astype(np.float32)


class Int4:
    """Integers in [-8, 7], two to a byte; the number of largest magnitude becomes -8, so the scale has a sign."""

    integers = True

    def bytes_of(self, dim: int) -> int:
        """Return the bytes of the codes of ``dim`` numbers, padded to vectors of 16."""
        return -(-dim // 16) * 8

    def encode(self, x: Array) -> tuple[NDArray[np.uint8], Array]:
        """Return codes (..., bytes) and scale (..., 1) of x (..., dim)."""
        high, low = x.max(axis=-1, keepdims=True), x.min(axis=-1, keepdims=True)  # (..., 1)
        extreme = np.where(high > -low, high, low)  # (..., 1)
        scale = np.where(np.abs(extreme) < SMALLEST, 0, extreme / -8)  # (..., 1)
        steps = np.divide(x, scale, out=np.zeros_like(x), where=scale != 0)  # (..., dim)
        padded = np.full((*x.shape[:-1], 2 * self.bytes_of(x.shape[-1])), 8, np.uint8)  # 0 as a code
        padded[..., : x.shape[-1]] = np.clip(np.rint(steps), -8, 7) + 8
        return padded[..., ::2] | padded[..., 1::2] << 4, scale

    def decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the integers (..., 2 * bytes)."""
        both = np.stack([codes & 15, codes >> 4], axis=-1).astype(np.float32) - 8  # (..., bytes, 2)
        return both.reshape(*codes.shape[:-1], -1)


class E4m3:
    """Numbers with 4 bits of exponent and 3 of fraction: OCP's e4m3 over 256, up to 1.75."""

    integers = False
    numbers = np.ldexp(
        np.where(np.arange(127) < 8, np.arange(127) % 8, 8 + np.arange(127) % 8).astype(np.float64),
        np.maximum(np.arange(127) // 8, 1) - 18,
    )
    """Numbers of codes 0 to 126, ascending, (127,); codes 128 to 254 are their negatives."""

    def bytes_of(self, dim: int) -> int:
        """Return the bytes of the codes of ``dim`` numbers."""
        return dim

    def encode(self, x: Array) -> tuple[NDArray[np.uint8], Array]:
        """Return codes (..., dim) and scale (..., 1) of x (..., dim), rounded to nearest, ties to the even code."""
        largest = np.abs(x).max(axis=-1, keepdims=True)  # (..., 1)
        scale = np.where(largest < SMALLEST, 0, largest / 1.75)  # (..., 1)
        steps = np.divide(np.abs(x), scale, out=np.zeros_like(x), where=scale > 0)  # (..., dim)
        middles = (self.numbers[1:] + self.numbers[:-1]) / 2  # (126,)
        code = np.searchsorted(middles, steps)  # (..., dim) how many middles are less
        is_middle = np.append(middles, np.inf)[code] == steps
        code += is_middle & (code % 2 == 1)
        return (code + 128 * np.signbit(x)).astype(np.uint8), scale

    def decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the numbers (..., dim)."""
        table = np.concatenate([self.numbers, [np.nan], -self.numbers, [np.nan]]).astype(np.float32)
        decoded: NDArray[np.float32] = table[codes]
        return decoded
