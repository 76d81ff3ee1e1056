"""The paged KV cache: blocks of 16 positions, which the block table of a sequence lists in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import KernelError

from .activations import round_shares, round_to_int8
from .codes import LEAST_BLOCK, Codes, E4m3, Int4, Int8
from .hadamard import Float, rotate, unrotated

Array = NDArray[np.floating]


class PagedCache(Protocol):
    """The storage of keys and values."""

    nbytes: int
    arrays: tuple[NDArray[Any], ...]
    """All of its memory, (..., slots, kv_heads, n) each."""

    def queries(self, q: NDArray[Float]) -> NDArray[Float]:
        """Return q (..., head_dim) as used in scores: with integer keys, q is rounded to int8 per head too."""

    def shares(self, layer: int, slots: NDArray[np.intp], shares: NDArray[Float], kv_head: int) -> NDArray[Float]:
        """Return the shares (..., tokens) of slots (tokens,) as used in sums of values: in bytes for integer sums."""

    def append(self, layer: int, slots: NDArray[np.intp], k: Array, v: Array) -> None:
        """Write k and v (tokens, kv_heads, size of a head) to slots (tokens,)."""

    def read(self, layer: int, slots: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return k and v (tokens, kv_heads, size of a head) of slots (tokens,)."""


def slots_of(block_table: NDArray[np.int32], positions: NDArray[np.intp], block: int) -> NDArray[np.intp]:
    """Return the slot of each position, (tokens,): block * (its block's number) + its offset in the block."""
    return block_table[positions // block].astype(np.intp) * block + positions % block


class F32Cache:
    """Keys and values in binary32."""

    dtype: type[np.floating] = np.float32

    def __init__(self, *, layers: int, slots: int, kv_heads: int, head_dim: int, v_head_dim: int = 0) -> None:
        """Allocate ``slots`` positions (blocks x positions of a block); v_head_dim 0: as head_dim."""
        self._k = np.zeros((layers, slots, kv_heads, head_dim), self.dtype)
        self._v = np.zeros((layers, slots, kv_heads, v_head_dim or head_dim), self.dtype)
        self.arrays: tuple[NDArray[Any], ...] = (self._k, self._v)
        self.nbytes = self._k.nbytes + self._v.nbytes

    def queries(self, q: NDArray[Float]) -> NDArray[Float]:
        """Return q unchanged."""
        return q

    def shares(self, layer: int, slots: NDArray[np.intp], shares: NDArray[Float], kv_head: int) -> NDArray[Float]:
        """Return the shares unchanged."""
        return shares

    def append(self, layer: int, slots: NDArray[np.intp], k: Array, v: Array) -> None:
        """Write k and v (tokens, kv_heads, size of a head) to slots (tokens,)."""
        self._k[layer, slots] = k
        self._v[layer, slots] = v

    def read(self, layer: int, slots: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return k and v (tokens, kv_heads, size of a head) of slots (tokens,)."""
        return self._k[layer, slots], self._v[layer, slots]


class F16Cache(F32Cache):
    """Keys and values in binary16, rounded to nearest even; larger values become the largest half."""

    dtype = np.float16

    def append(self, layer: int, slots: NDArray[np.intp], k: Array, v: Array) -> None:
        """Write k and v (tokens, kv_heads, size of a head) to slots (tokens,)."""
        most = np.finfo(np.float16).max
        super().append(layer, slots, np.clip(k, -most, most), np.clip(v, -most, most))

    def read(self, layer: int, slots: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return k and v (tokens, kv_heads, size of a head) of slots (tokens,) as binary32."""
        k, v = super().read(layer, slots)
        return k.astype(np.float32), v.astype(np.float32)


class ScaledCache:
    """Keys and values as codes with one scale per token and head, optionally rotated over the head.

    ``read`` undoes the rotation, so it only affects the rounding of codes.
    """

    keys: Codes
    values: Codes
    rotated = True
    most_share = 0
    """The largest share of a token where values are added in integers; 0 where they are not."""

    def __init__(self, *, layers: int, slots: int, kv_heads: int, head_dim: int, v_head_dim: int = 0) -> None:
        """Allocate ``slots`` positions; raises KernelError for a head size that cannot be rotated."""
        self._dims = (head_dim, v_head_dim or head_dim)
        for dim in self._dims:
            if self.rotated and dim % LEAST_BLOCK:
                raise KernelError(
                    "backend numpy",
                    f"a rotated cache takes heads of a multiple of {LEAST_BLOCK} elements, not of {dim}",
                    "set kv_cache.dtype to int8, f16 or f32",
                )
        shape = (layers, slots, kv_heads)
        self._codes = [
            np.zeros((*shape, codes.bytes_of(dim)), np.uint8)
            for codes, dim in zip((self.keys, self.values), self._dims, strict=True)
        ]
        self._scale = np.zeros((2, *shape, 1), np.float32)
        self.arrays: tuple[NDArray[Any], ...] = (*self._codes, self._scale)
        self.nbytes = sum(array.nbytes for array in self.arrays)

    def queries(self, q: NDArray[Float]) -> NDArray[Float]:
        """Return q (..., head_dim), rounded to int8 per head (after a rotation, which is undone) for integer keys."""
        if not self.keys.integers:
            return q
        return unrotated(round_to_int8(rotate(q))) if self.rotated else round_to_int8(q)

    def shares(self, layer: int, slots: NDArray[np.intp], shares: NDArray[Float], kv_head: int) -> NDArray[Float]:
        """Return the shares (..., tokens) of slots (tokens,), in bytes if values are added in integers."""
        if not self.most_share:
            return shares
        return round_shares(shares, self._scale[1, layer, slots, kv_head, 0], self.most_share)

    def append(self, layer: int, slots: NDArray[np.intp], k: Array, v: Array) -> None:
        """Write k and v (tokens, kv_heads, size of a head) to slots (tokens,)."""
        for part, (codes, x) in enumerate(((self.keys, k), (self.values, v))):
            encoded, self._scale[part, layer, slots] = codes.encode(rotate(x) if self.rotated else x)
            self._codes[part][layer, slots] = encoded

    def read(self, layer: int, slots: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return k and v (tokens, kv_heads, size of a head) of slots (tokens,)."""
        k, v = (
            codes.decode(self._codes[part][layer, slots])[..., : self._dims[part]] * self._scale[part, layer, slots]
            for part, codes in enumerate((self.keys, self.values))
        )
        if not self.rotated:
            return k, v
        return unrotated(k.astype(np.float64)), unrotated(v.astype(np.float64))


class Int8Cache(ScaledCache):
    """Keys and values as 8-bit integers."""

    keys = values = Int8()
    rotated = False


class Int8HCache(ScaledCache):
    """Keys and values as 8-bit integers, rotated."""

    keys = values = Int8()


class K8V4HCache(ScaledCache):
    """Keys as 8-bit and values as 4-bit integers, rotated."""

    keys, values = Int8(), Int4()


class Int4HCache(ScaledCache):
    """Keys and values as 4-bit integers, rotated."""

    keys = values = Int4()


class Fp8HCache(ScaledCache):
    """Keys and values as e4m3 numbers, rotated."""

    keys = values = E4m3()


class Int8ICache(Int8Cache):
    """Keys and values as 8-bit integers; values are added in integers."""

    most_share = 255


class Int8HICache(Int8HCache):
    """Keys and values as 8-bit integers, rotated; values are added in integers."""

    most_share = 255


class K8V4HICache(K8V4HCache):
    """Keys as 8-bit and values as 4-bit integers, rotated; values are added in integers, by shares with a sign."""

    most_share = 127


class Int4HICache(Int4HCache):
    """Keys and values as 4-bit integers, rotated; values are added in integers, by shares with a sign."""

    most_share = 127


CACHES: dict[str, Callable[..., PagedCache]] = {
    "f32": F32Cache,
    "f16": F16Cache,
    "int8": Int8Cache,
    "int8h": Int8HCache,
    "k8v4h": K8V4HCache,
    "int4h": Int4HCache,
    "fp8h": Fp8HCache,
    "int8i": Int8ICache,
    "int8hi": Int8HICache,
    "k8v4hi": K8V4HICache,
    "int4hi": Int4HICache,
}
"""Cache format -> class."""
