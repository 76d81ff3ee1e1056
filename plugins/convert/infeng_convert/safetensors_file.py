"""Reading a checkpoint's safetensors files, tensor by tensor."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import ModelError, read_into
from infeng_core.api.formats import TensorInfo, aligned_bytes, fail_safetensors, opened, safetensors_header

FLOAT_DTYPES = ("F32", "F16", "BF16")
NUMPY_DTYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8}

GONE = "download the model again"


class SafetensorsFile:
    """A file whose tensors are read one at a time, each into memory of its own.

    Nothing is mapped and nothing stays open: a file that is cut, written or replaced while it is read is an error.
    """

    def __init__(self, path: Path) -> None:
        """Read the header of ``path`` and check it; raises ModelError."""
        self.path = path
        with opened(path, ModelError, GONE) as handle:
            self._stamp = _stamp(handle)
            self.header = safetensors_header(handle, path)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The tensors by name."""
        return self.header.tensors

    def array(self, name: str, begin: int = 0, rows: int | None = None) -> NDArray[Any]:
        """Return a tensor, or ``rows`` of its rows from ``begin`` on, as float32, float16, uint8 or, for BF16, uint16.

        A tensor of more than two dimensions is returned as a matrix: all dimensions but the last are joined.
        Raises ModelError for another dtype, and for a file that has changed.
        """
        info = self.tensors[name]
        if info.dtype not in NUMPY_DTYPES:
            why = f"is {info.dtype}, weights must be F32, F16 or BF16"
            fail_safetensors(self.path, why, name, "convert the model to one of them, or use its original release")
        whole = as_matrix(info.shape)
        shape = whole if rows is None else (rows, *whole[1:])
        row = info.nbytes // max(whole[0], 1) if whole else info.nbytes
        nbytes = info.nbytes if rows is None else rows * row
        values: NDArray[Any] = self.piece(name, begin * row, nbytes).view(NUMPY_DTYPES[info.dtype])
        return values.reshape(shape)

    def piece(self, name: str, first: int, count: int) -> NDArray[np.uint8]:
        """Return ``count`` bytes of a tensor from its byte ``first`` on, 64-byte aligned; raises ModelError."""
        out = aligned_bytes(count)
        with opened(self.path, ModelError, GONE) as handle:
            read_into(handle, out.data, self.tensors[name].begin + first, self.path)
            if _stamp(handle) != self._stamp:
                fail_safetensors(
                    self.path, "was changed while it was read", None, "wait until it is written, and try again"
                )
        return out


def as_matrix(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape with all dimensions but the last joined."""
    return shape if len(shape) < 3 else (math.prod(shape[:-1]), shape[-1])


def _stamp(handle: int) -> tuple[int, ...]:
    """Return a stamp that differs if an open file is replaced or written."""
    found = os.fstat(handle)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
