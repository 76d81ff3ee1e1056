"""A quantized weight: weight[n, k] = scale[n, g] * (code[n, k] - zero[n, g]), g the group of k."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from infeng_convert.quantized.raw import FP8, Raw

PIECE = 1 << 22  # values computed at a time
LARGEST = 2.0**100  # of scales, so that no product overflows


class Module:
    """A quantized matrix (n, k) of a checkpoint."""

    main: str
    """The tensor that errors name."""

    def __init__(self, raw: Raw, name: str, n: int, k: int) -> None:
        """``name``: the weight's name without ``.weight``; n, k: its size."""
        self.raw, self.name, self.n, self.k = raw, name, n, k

    @property
    def label(self) -> str:
        """Short description of the storage."""
        raise NotImplementedError

    @property
    def room(self) -> int:
        """Bytes of the whole weight as ``values`` returns it, with its codes."""
        return 6 * self.n * self.k

    def values(self, begin: int, rows: int) -> NDArray[np.float32]:
        """Return rows as (rows, k) float32; values that are not finite are kept."""
        raise NotImplementedError


class Integers(Module):
    """Codes of ``bits`` bits, a scale and perhaps a zero point for each ``group`` inputs of an output."""

    bits: int
    group: int  # k for one scale for each output

    def codes(self) -> NDArray[np.int8]:
        """Return all codes less half of their range, (n, k) in [-2^(bits-1), 2^(bits-1))."""
        raise NotImplementedError

    def scales(self) -> NDArray[np.float32]:
        """Return (n, groups)."""
        raise NotImplementedError

    def zeros(self) -> NDArray[np.int16] | None:
        """Return zero points less half of the codes' range, (n, groups); None if all are 0."""
        raise NotImplementedError

    def order(self) -> NDArray[np.int64] | None:
        """Return the group of each input, (k,); None if groups are runs of neighbours."""
        return None

    @property
    def low(self) -> int:
        """The least code."""
        return -(1 << (self.bits - 1))

    @property
    def groups(self) -> int:
        """The number of scales of an output."""
        return -(-self.k // self.group)

    @property
    def label(self) -> str:
        size = " per row" if self.group >= self.k else f"-g{self.group}"
        zeros = "" if self.is_symmetric else " with zero points"
        return f"int{self.bits}{size}{zeros}{'' if self.is_ordered else ' in activation order'}"

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether all zero points are 0."""
        return self.zeros() is None

    @cached_property
    def is_ordered(self) -> bool:
        """Whether groups are runs of neighbours."""
        return self.order() is None

    @cached_property
    def scale_type(self) -> np.dtype[np.float16] | np.dtype[np.float32] | None:
        """The narrowest type that holds all scales; None if one is not finite or implausibly large."""
        scales = self.scales()
        if not np.abs(scales).max(initial=0) < LARGEST:
            return None
        with np.errstate(over="ignore"):
            is_half = np.array_equal(scales.astype(np.float16).astype(np.float32), scales)
        return np.dtype(np.float16) if is_half else np.dtype(np.float32)

    def signed(self, codes: NDArray[np.uint8]) -> NDArray[np.int8]:
        """Return codes from 0 on less half of their range, in the same memory."""
        codes -= np.uint8(1 << (self.bits - 1))  # wraps around; the bytes are then read as signed
        return codes.view(np.int8)

    def checked(self, name: str, order: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return ``order``, or None if its groups are runs of neighbours; raises ModelError for an unknown group."""
        wrong = np.flatnonzero((order < 0) | (order >= self.groups))
        if wrong.size:
            self.raw.fail(name, f"has {order[wrong[0]]} at {wrong[0]}, there are {self.groups} groups")
        return None if np.array_equal(order, np.arange(self.k) // self.group) else order

    def values(self, begin: int, rows: int) -> NDArray[np.float32]:
        end, order = begin + rows, self.order()
        codes, scales, zeros = self.codes()[begin:end], self.scales()[begin:end], self.zeros()
        zeros = None if zeros is None else zeros[begin:end]
        column = np.arange(self.k) // self.group if order is None else order
        out = np.empty((rows, self.k), np.float32)
        step = max(1, PIECE // self.k)
        with np.errstate(all="ignore"):  # packing detects and names values that are not finite
            for first in range(0, rows, step):
                some = slice(first, first + step)
                out[some] = codes[some]
                if zeros is not None:
                    out[some] -= zeros[some].take(column, axis=1)
                out[some] *= scales[some].take(column, axis=1)
        return out


class Floats(Module):
    """Bytes in e4m3, with a scale for the matrix, for each output, or for each block of outputs and inputs."""

    def __init__(self, raw: Raw, name: str, n: int, k: int, scale: str, block: tuple[int, int]) -> None:
        """``scale``: the tensor with one scale for each ``block`` of (outputs, inputs)."""
        super().__init__(raw, name, n, k)
        self.main, self._scale, self._block = f"{name}.weight", scale, block

    @property
    def label(self) -> str:
        return "fp8-e4m3"

    def values(self, begin: int, rows: int) -> NDArray[np.float32]:
        high, wide = self._block
        scales = self.raw.floats(self._scale).reshape(-(-self.n // high), -(-self.k // wide))
        codes = self.raw.read(self.main)[begin : begin + rows]
        out = np.empty((rows, self.k), np.float32)
        column, row = np.arange(self.k) // wide, np.arange(begin, begin + rows) // high
        step = max(1, PIECE // self.k)
        with np.errstate(all="ignore"):
            for first in range(0, rows, step):
                some = slice(first, first + step)
                np.multiply(FP8[codes[some]], scales[row[some]][:, column], out=out[some])
        return out
