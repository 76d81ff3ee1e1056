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
from typing import NoReturn

from infeng_core.errors import ModelError
from infeng_core.files import opened, parse_json

MAX_HEADER = 16 << 20  # about 130,000 tensors of one file
DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}

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
        fail(path, f"has {file_size} bytes, too few for a safetensors file")
    length = int.from_bytes(start[:8], "little")
    if length > limit:
        fail(path, f"claims a header of {length} bytes, more than the limit of {limit}")
    if 8 + length > file_size:
        fail(path, f"claims a header of {length} bytes, but has {file_size} bytes in all")
    return length


def _parse_header(data: bytes, file_size: int, path: Path) -> Header:
    """Check the header's bytes against the file's size."""
    if not data.startswith(b"{"):
        fail(path, "has a header that does not start with '{'")
    try:
        document = parse_json(data)
    except ValueError as error:
        fail(path, f"has a header that is not valid JSON ({error})")
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        fail(path, "has a __metadata__ that is not a mapping of strings")
    begin = 8 + len(data)
    tensors = {name: _tensor(name, entry, begin, path) for name, entry in document.items()}
    _check_cover(tensors, begin, file_size, path)
    return Header(begin, metadata, tensors)


def _tensor(name: str, entry: object, data_begin: int, path: Path) -> TensorInfo:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        fail(path, "must have exactly dtype, shape and data_offsets", name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        fail(path, f"has the unknown dtype {str(dtype)[:40]!r}", name)
    if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
        fail(path, "has a shape or data_offsets that are not lists of sizes", name)
    begin, end = offsets
    if begin > end:
        fail(path, f"ends at {end}, before its begin at {begin}", name)
    if any(size >= 1 << 63 for size in (*shape, end)) or len(shape) > 32:
        fail(path, "has sizes that no file can have", name)
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits != (end - begin) * 8:
        fail(path, f"is {dtype} {tuple(shape)}, {bits // 8} bytes, but its data_offsets span {end - begin}", name)
    return TensorInfo(name, dtype, tuple(shape), data_begin + begin, end - begin)


def _sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_cover(tensors: Mapping[str, TensorInfo], begin: int, file_size: int, path: Path) -> None:
    """Raise ModelError unless the tensors cover the data exactly: no overlap, no hole, no missing or spare byte."""
    position = begin
    for info in sorted(tensors.values(), key=lambda info: (info.begin, info.nbytes)):
        if info.begin + info.nbytes > file_size:
            missing = info.begin + info.nbytes - file_size
            fail(path, f"lies beyond the end of the file: {missing} bytes are missing", info.name)
        if info.begin < position:
            fail(path, "overlaps another tensor", info.name)
        if info.begin > position:
            fail(path, f"leaves a hole of {info.begin - position} bytes before it", info.name)
        position = info.begin + info.nbytes
    if position != file_size:
        fail(path, f"has {file_size - position} bytes after the last tensor")


def fail(path: Path, why: str, tensor: str | None = None, remedy: str = REMEDY) -> NoReturn:
    """Raise the ModelError for a file, or for one of its tensors."""
    subject = f"tensor {tensor[:200]} " if tensor is not None else ""
    raise ModelError(f"{path}", f"{subject}{why}", remedy)
