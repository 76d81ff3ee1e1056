"""Keys and values of all sequences, in blocks of 16 positions that a sequence's block table strings together."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .rounding import quantize

Array = NDArray[np.floating]


class PagedCache(Protocol):
    """Where the model puts keys and values and reads them back."""

    nbytes: int
    arrays: tuple[NDArray[Any], ...]
    """All of its memory: (..., slots, kv_heads, n) each."""

    def append(self, layer: int, slots: NDArray[np.intp], k: Array, v: Array) -> None:
        """Write k, v (tokens, kv_heads, head_dim) to slots (tokens,)."""

    def read(self, layer: int, slots: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return k, v (tokens, kv_heads, head_dim) of slots (tokens,)."""


def slots_of(block_table: NDArray[np.int32], positions: NDArray[np.intp], block: int) -> NDArray[np.intp]:
    """Return the slot of each position (tokens,): block * (its block's number) + its place in the block."""
    return block_table[positions // block].astype(np.intp) * block + positions % block


class F32Cache:
    """Keys and values as they are, in binary32."""

    dtype: type[np.floating] = np.float32

    def __init__(self, *, layers: int, slots: int, kv_heads: int, head_dim: int) -> None:
        """Take memory for ``slots`` positions (blocks x positions of a block)."""
        self._k = np.zeros((layers, slots, kv_heads, head_dim), self.dtype)
        self._v = np.zeros_like(self._k)
        self.arrays: tuple[NDArray[Any], ...] = (self._k, self._v)
        self.nbytes = self._k.nbytes + self._v.nbytes

    def append(self, layer: int, slots: NDArray[np.intp], k: Array, v: Array) -> None:
        """Write k, v (tokens, kv_heads, head_dim) to slots (tokens,)."""
        self._k[layer, slots] = k
        self._v[layer, slots] = v

    def read(self, layer: int, slots: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return k, v (tokens, kv_heads, head_dim) of slots (tokens,)."""
        return self._k[layer, slots], self._v[layer, slots]


class F16Cache(F32Cache):
    """Keys and values in binary16, rounded to nearest even; what lies beyond the largest half becomes that."""

    dtype = np.float16

    def append(self, layer: int, slots: NDArray[np.intp], k: Array, v: Array) -> None:
        """Write k, v (tokens, kv_heads, head_dim) to slots (tokens,)."""
        most = np.finfo(np.float16).max
        super().append(layer, slots, np.clip(k, -most, most), np.clip(v, -most, most))

    def read(self, layer: int, slots: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return k, v (tokens, kv_heads, head_dim) of slots (tokens,), widened."""
        k, v = super().read(layer, slots)
        return k.astype(np.float32), v.astype(np.float32)


class Int8Cache:
    """Keys and values as 8-bit integers, with one scale for each token and head."""

    def __init__(self, *, layers: int, slots: int, kv_heads: int, head_dim: int) -> None:
        """Take memory for ``slots`` positions (blocks x positions of a block)."""
        self._q = np.zeros((2, layers, slots, kv_heads, head_dim), np.int8)  # keys, then values
        self._scale = np.zeros((2, layers, slots, kv_heads, 1), np.float32)
        self.arrays: tuple[NDArray[Any], ...] = (self._q, self._scale)
        self.nbytes = self._q.nbytes + self._scale.nbytes

    def append(self, layer: int, slots: NDArray[np.intp], k: Array, v: Array) -> None:
        """Write k, v (tokens, kv_heads, head_dim) to slots (tokens,)."""
        for part, x in enumerate((k, v)):
            self._q[part, layer, slots], self._scale[part, layer, slots] = quantize(x)

    def read(self, layer: int, slots: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return k, v (tokens, kv_heads, head_dim) of slots (tokens,)."""
        k, v = self._q[:, layer, slots] * self._scale[:, layer, slots]
        return k, v
