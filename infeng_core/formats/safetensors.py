"""Strict reading of safetensors files: nothing of the header is believed before it is checked.

Layout (https://github.com/huggingface/safetensors): a little-endian u64 header length, the header as JSON, the data.
Offsets count from the start of the data, which tensors cover without holes or overlaps.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import ModelError
from infeng_core.formats.jsonfile import parse_json, require_regular

MAX_HEADER = 100_000_000  # the limit of the format's own library
DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
NUMPY_DTYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8}

REMEDY = "the file is damaged or incomplete: download or write it again"


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file: ``nbytes`` bytes from byte ``begin`` of the file on."""

    name: str
    dtype: str  # as the format names it: "BF16"
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
    try:
        require_regular(path)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = header_length(file.read(8), size, path, limit)
            return parse_header(file.read(length), size, path)
    except OSError as error:
        raise _unreadable(path, error) from None


def header_length(start: bytes, file_size: int, path: Path, limit: int = MAX_HEADER) -> int:
    """Return the header's length from the file's first 8 bytes."""
    if len(start) < 8 or file_size < 8:
        _fail(path, f"has {file_size} bytes, too few for a safetensors file")
    length = int.from_bytes(start[:8], "little")
    if length > limit:
        _fail(path, f"claims a header of {length} bytes, more than the limit of {limit}")
    if 8 + length > file_size:
        _fail(path, f"claims a header of {length} bytes, but has {file_size} bytes in all")
    return length


def parse_header(data: bytes, file_size: int, path: Path) -> Header:
    """Check the header's bytes against the size of the file they came from."""
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
    """A file mapped read-only; arrays are views of the map and keep it alive."""

    def __init__(self, path: Path) -> None:
        """Map ``path`` and check its header; raises ModelError."""
        self.path = path
        self.header = read_header(path)
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from None

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The tensors by name."""
        return self.header.tensors

    def array(self, name: str) -> NDArray[Any]:
        """Return a tensor as float32, float16, uint8 or, for BF16, uint16; a view, or a copy where it is not aligned.

        Raises ModelError for another dtype.
        """
        info = self.tensors[name]
        if info.dtype not in NUMPY_DTYPES:
            why = f"is {info.dtype}, weights must be F32, F16 or BF16"
            _fail(self.path, why, name, "convert the model to one of them, or use its original release")
        dtype = np.dtype(NUMPY_DTYPES[info.dtype])
        if info.begin + info.nbytes > len(self._map):
            _fail(self.path, "has become shorter since it was opened")
        flat = np.frombuffer(self._map, dtype, count=info.nbytes // dtype.itemsize, offset=info.begin)
        return np.require(flat.reshape(info.shape), requirements="A")

    def release(self, name: str) -> None:
        """Let the system drop the tensor's pages from this process; a later access reads them again."""
        info = self.tensors[name]
        first = info.begin // mmap.PAGESIZE * mmap.PAGESIZE
        if info.nbytes and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, info.begin + info.nbytes - first)


def _unreadable(path: Path, error: Exception) -> ModelError:
    if isinstance(error, FileNotFoundError):
        return ModelError(f"{path}", "no such file", "download the model again")
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return ModelError(f"{path}", f"cannot be read ({reason})", "check the file and its permissions")


def _fail(path: Path, why: str, tensor: str | None = None, remedy: str = REMEDY) -> NoReturn:
    subject = f"tensor {tensor[:200]} " if tensor is not None else ""
    raise ModelError(f"{path}", f"{subject}{why}", remedy)
