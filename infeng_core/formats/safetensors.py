"""Strict reading of safetensors files: no value of the header is used before it is checked.

Layout (https://github.com/huggingface/safetensors): a little-endian u64 header length, the header as JSON, the data.
Offsets count from the start of the data, which tensors cover without holes or overlaps.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import ModelError
from infeng_core.files import opened, parse_json, read_into
from infeng_core.formats.shards import aligned_bytes

MAX_HEADER = 16 << 20  # about 130,000 tensors of one file
DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
FLOAT_DTYPES = ("F32", "F16", "BF16")
NUMPY_DTYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8}

GONE = "download the model again"
REMEDY = "the file is damaged or incomplete: download or write it again"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: ``nbytes`` bytes from byte ``begin`` of the file on."""

    name: str
    dtype: str  # in the format's spelling: "BF16"
    shape: tuple[int, ...]
    begin: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """A checked header; the data starts at byte ``data_begin`` of the file."""

    data_begin: int
    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorInfo]


def read_header(path: Path, limit: int = MAX_HEADER) -> Header:
    """Read and check the header of ``path``, of ``limit`` bytes at most.

    Raises ModelError naming the file, the tensor and the reason.
    """
    with opened(path, ModelError, GONE) as handle:
        return header_of(handle, path, limit)


def header_of(handle: int, path: Path, limit: int = MAX_HEADER) -> Header:
    """Read and check the header of an open file, of ``limit`` bytes at most."""
    size = os.fstat(handle).st_size
    length = _header_length(os.pread(handle, 8, 0), size, path, limit)
    return _parse_header(os.pread(handle, length, 8), size, path)


def _header_length(start: bytes, file_size: int, path: Path, limit: int) -> int:
    """Return the header's length from the file's first 8 bytes."""
    if len(start) < 8 or file_size < 8:
        _fail(path, f"has {file_size} bytes, too few for a safetensors file")
    length = int.from_bytes(start[:8], "little")
    if length > limit:
        _fail(path, f"claims a header of {length} bytes, more than the limit of {limit}")
    if 8 + length > file_size:
        _fail(path, f"claims a header of {length} bytes, but has {file_size} bytes in all")
    return length


def _parse_header(data: bytes, file_size: int, path: Path) -> Header:
    """Check the header's bytes against the file's size."""
    if not data.startswith(b"{"):
        _fail(path, "has a header that does not start with '{'")
    try:
        document = parse_json(data)
    except ValueError as error:
        _fail(path, f"has a header that is not valid JSON ({error})")
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _fail(path, "has a __metadata__ that is not a mapping of strings")
    begin = 8 + len(data)
    tensors = {name: _tensor(name, entry, begin, path) for name, entry in document.items()}
    _check_cover(tensors, begin, file_size, path)
    return Header(begin, metadata, tensors)


def _tensor(name: str, entry: object, data_begin: int, path: Path) -> TensorInfo:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        _fail(path, "must have exactly dtype, shape and data_offsets", name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        _fail(path, f"has the unknown dtype {str(dtype)[:40]!r}", name)
    if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
        _fail(path, "has a shape or data_offsets that are not lists of sizes", name)
    begin, end = offsets
    if begin > end:
        _fail(path, f"ends at {end}, before its begin at {begin}", name)
    if any(size >= 1 << 63 for size in (*shape, end)) or len(shape) > 32:
        _fail(path, "has sizes that no file can have", name)
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits != (end - begin) * 8:
        _fail(path, f"is {dtype} {tuple(shape)}, {bits // 8} bytes, but its data_offsets span {end - begin}", name)
    return TensorInfo(name, dtype, tuple(shape), data_begin + begin, end - begin)


def _sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_cover(tensors: Mapping[str, TensorInfo], begin: int, file_size: int, path: Path) -> None:
    """Raise ModelError unless the tensors cover the data exactly: no overlap, no hole, no missing or spare byte."""
    position = begin
    for info in sorted(tensors.values(), key=lambda info: (info.begin, info.nbytes)):
        if info.begin + info.nbytes > file_size:
            missing = info.begin + info.nbytes - file_size
            _fail(path, f"lies beyond the end of the file: {missing} bytes are missing", info.name)
        if info.begin < position:
            _fail(path, "overlaps another tensor", info.name)
        if info.begin > position:
            _fail(path, f"leaves a hole of {info.begin - position} bytes before it", info.name)
        position = info.begin + info.nbytes
    if position != file_size:
        _fail(path, f"has {file_size - position} bytes after the last tensor")


class SafetensorsFile:
    """A file whose tensors are read one at a time, each into memory of its own.

    Nothing is mapped and nothing stays open: a file that is cut, written or replaced while it is read is an error.
    """

    def __init__(self, path: Path) -> None:
        """Read the header of ``path`` and check it; raises ModelError."""
        self.path = path
        with opened(path, ModelError, GONE) as handle:
            self._stamp = _stamp(handle)
            self.header = header_of(handle, path)

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
            _fail(self.path, why, name, "convert the model to one of them, or use its original release")
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
                _fail(self.path, "was changed while it was read", None, "wait until it is written, and try again")
        return out


def as_matrix(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape with all dimensions but the last joined."""
    return shape if len(shape) < 3 else (math.prod(shape[:-1]), shape[-1])


def _stamp(handle: int) -> tuple[int, ...]:
    """Return a stamp that differs if an open file is replaced or written."""
    found = os.fstat(handle)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _fail(path: Path, why: str, tensor: str | None = None, remedy: str = REMEDY) -> NoReturn:
    subject = f"tensor {tensor[:200]} " if tensor is not None else ""
    raise ModelError(f"{path}", f"{subject}{why}", remedy)
