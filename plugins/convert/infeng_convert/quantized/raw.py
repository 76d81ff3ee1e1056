"""Tensors of a checkpoint as stored in its files, and the integers that are packed in their words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from infeng_convert.safetensors_file import SafetensorsFile
from infeng_core.api import ModelError
from infeng_core.api.formats import widened

Codes = NDArray[np.uint8]
Words = NDArray[np.uint32]

NUMPY: Mapping[str, Any] = {
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I32": "<i4",
    "I64": "<i8",
    "I8": "i1",
    "U8": "u1",
    "F8_E4M3": "u1",
}
FLOATS = ("F16", "BF16", "F32")
MISMATCH = "the file does not match its config.json, or is damaged: download the model again"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output, of 8, to which the i-th nibble of a word belongs (AutoAWQ, ``awq/utils/packing_utils.py``)."""


class Raw:
    """Tensors by the text model's names; each is read at its use."""

    def __init__(self, where: Mapping[str, SafetensorsFile], outside: Callable[[str], str]) -> None:
        """``where``: the file of each. ``outside``: its name there."""
        self._where = where
        self._outside = outside

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def dtype(self, name: str) -> str:
        """Return the type of an existing tensor, in the file's spelling."""
        return self._where[name].tensors[self._outside(name)].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an existing tensor."""
        return self._where[name].tensors[self._outside(name)].shape

    def read(self, name: str) -> NDArray[Any]:
        """Return a whole tensor; bf16 as uint16, fp8 as uint8."""
        info = self._where[name].tensors[self._outside(name)]
        data = self._where[name].piece(self._outside(name), 0, info.nbytes)
        found: NDArray[Any] = data.view(NUMPY[info.dtype])
        return found.reshape(info.shape)

    def rows(self, name: str, begin: int, count: int) -> NDArray[np.uint8]:
        """Return rows of a tensor of bytes, (count, last dimension), with all dimensions but the last joined."""
        found: NDArray[np.uint8] = self._where[name].array(self._outside(name), begin, count)
        return found

    def floats(self, name: str) -> NDArray[np.float32]:
        """Return a tensor of floats as float32, which is exact for all of them."""
        return widened(self.read(name))

    def words(self, name: str) -> Words:
        """Return a tensor of int32 as words."""
        return self.read(name).view(np.uint32)

    def place(self, name: str) -> str:
        """Return "file: tensor name" for errors."""
        return f"{self._where[name].path}: tensor {self._outside(name)}"

    def fail(self, name: str, why: str, remedy: str = MISMATCH) -> NoReturn:
        """Raise ModelError for a tensor: ``why`` continues the sentence "tensor ..."."""
        raise ModelError(f"{self._where[name].path}", f"tensor {self._outside(name)} {why}", remedy)

    def require(self, name: str, beside: str) -> str:
        """Return ``name``; raise ModelError if it is missing although ``beside`` exists."""
        if name not in self._where:
            why = f"tensor {self._outside(name)} is missing, though {self._outside(beside)} is there"
            raise ModelError(f"{self._where[beside].path}", why, MISMATCH)
        return name

    def expect(self, name: str, dtypes: Sequence[str], *shapes: tuple[int, ...]) -> None:
        """Raise ModelError unless a tensor has one of ``dtypes`` and one of ``shapes``."""
        if self.dtype(name) not in dtypes:
            self.fail(name, f"is {self.dtype(name)}, it must be {' or '.join(dtypes)}")
        if self.shape(name) not in shapes:
            wanted = " or ".join(map(str, dict.fromkeys(shapes)))
            self.fail(name, f"is {self.shape(name)}, quantization_config and the model's sizes say {wanted}")


def along(words: Words | Codes, bits: int) -> Codes:
    """Return (m, n) from words or bytes (m, n * bits / 32), which hold neighbours of a row, the first in low bits."""
    data = np.ascontiguousarray(words).view(np.uint8)  # little-endian: the low bits come first
    if bits == 8:
        return data
    out = np.empty((len(data), 2 * data.shape[1]), np.uint8)
    np.bitwise_and(data, 15, out=out[:, ::2])
    np.right_shift(data, 4, out=out[:, 1::2])
    return out


def down(words: Words, bits: int, order: Sequence[int] | None = None) -> Codes:
    """Return (n, m) from words (n * bits / 32, m): a word holds neighbours of a column.

    order: the neighbour to which each field belongs, low bits first; by default their own order.
    """
    each = 32 // bits
    out = np.empty((len(words) * each, words.shape[1]), np.uint8)
    for place in range(each):
        field = words >> np.uint32(bits * place)
        field &= np.uint32((1 << bits) - 1)
        out[(order or range(each))[place] :: each] = field
    return out


def _fp8() -> NDArray[np.float32]:
    """Return the value of each byte in e4m3: bias 7, no infinity, NaN where all other bits are set."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = np.where(exponent > 0, np.ldexp(1 + mantissa / 8, exponent - 7), np.ldexp(mantissa / 8, -6))
    size[byte & 127 == 127] = np.nan
    return np.where(byte > 127, -size, size).astype(np.float32)


FP8 = _fp8()
"""(256,)"""
