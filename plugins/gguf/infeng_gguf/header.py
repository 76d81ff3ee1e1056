"""The header of a GGUF file: its metadata and the places of its tensors, read within limits."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import ModelError
from infeng_gguf.types import TYPES, TensorType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER = 256 << 20  # the largest vocabularies take 20 MB
MAX_ENTRIES = 1 << 16
MAX_TENSORS = 1 << 17
MAX_NAME = 256
MAX_STRINGS = 1 << 22  # per list; the largest vocabularies have 300,000
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
FIRST_READ = 1 << 20

STRING, ARRAY = 8, 9
SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
DAMAGED = "the file is damaged or incomplete: download or write it again"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor: ``nbytes`` bytes from byte ``begin`` of its file; ``shape`` as in NumPy, rows first."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    begin: int
    nbytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, which is a whole number of blocks."""
        return self.shape[-1] // self.type.block * self.type.nbytes


@dataclass(frozen=True, slots=True)
class Array:
    """An array of the metadata, decoded on demand."""

    kind: int
    count: int
    data: memoryview  # of the items

    def strings(self) -> list[str]:
        """Return the strings; raises ValueError for another kind, or if they are not UTF-8."""
        if self.kind != STRING:
            raise ValueError("is no list of texts")
        return [str(self.data[begin:end], "utf-8") for begin, end in _strings(self.data, self.count)]

    def numbers(self) -> NDArray[Any]:
        """Return the numbers, (count,); raises ValueError for texts."""
        if self.kind not in SCALARS:
            raise ValueError("is no list of numbers")
        return np.frombuffer(self.data, SCALARS[self.kind])


class Header:
    """Reads and checks everything before the data."""

    def __init__(self, handle: int, path: Path) -> None:
        """Read the open file ``handle``; raises ModelError naming key or tensor, and reason."""
        self.handle, self.path = handle, path
        self.size = os.fstat(handle).st_size
        self.limit = min(self.size, MAX_HEADER)
        self.data = b""
        self.at = 0
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}
        tensors, entries = self._begin()
        for _ in range(entries):
            self._entry()
        infos = [self._tensor() for _ in range(tensors)]
        self._place(infos)

    def fail(self, why: str, remedy: str = DAMAGED) -> NoReturn:
        """Raise the ModelError of this file."""
        fail(self.path, why, remedy)

    def _begin(self) -> tuple[int, int]:
        if self.size < 24:
            self.fail(f"has {self.size} bytes, too few for a GGUF file")
        if self._take(4) != MAGIC:
            self.fail("does not begin with GGUF", "give a GGUF file, or a model's directory")
        version = self._integer("<I")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            kind = f"of version {swapped}, big-endian" if swapped in VERSIONS else f"of version {version}"
            self.fail(f"is {kind}; versions 2 and 3, little-endian, are read", "convert the model again with llama.cpp")
        tensors, entries = self._integer("<Q"), self._integer("<Q")
        if tensors > min(MAX_TENSORS, self.limit // 25):
            self.fail(f"claims {tensors} tensors, more than it has room for")
        if entries > min(MAX_ENTRIES, self.limit // 13):
            self.fail(f"claims {entries} entries of metadata, more than it has room for")
        return tensors, entries

    def _entry(self) -> None:
        key = self._text("a key", MAX_NAME)
        if not key or key in self.metadata:
            self.fail(f"has the key {key!r} twice" if key else "has a key without a name")
        kind = self._integer("<I")
        self.metadata[key] = self._list(key) if kind == ARRAY else self._value(key, kind)

    def _value(self, key: str, kind: int) -> Any:
        if kind == STRING:
            return self._text(key, self.limit)
        if kind not in SCALARS:
            self.fail(f"{key} is of the unknown type {kind}", "update infeng, or use another copy")
        dtype = np.dtype(SCALARS[kind])
        raw = self._take(dtype.itemsize)
        if kind == 7 and raw[0] > 1:
            self.fail(f"{key} is {raw[0]}, neither true nor false")
        return np.frombuffer(raw, dtype)[0].item()

    def _list(self, key: str) -> Array:
        kind, count = self._integer("<I"), self._integer("<Q")
        least = 8 if kind == STRING else np.dtype(SCALARS[kind]).itemsize if kind in SCALARS else 0
        if not least:
            self.fail(f"{key} is a list of the unknown type {kind}", "update infeng, or use another copy")
        if count > (self.limit - self.at) // least:
            self.fail(f"{key} claims {count} items, more than the file has room for")
        if kind == STRING and count > MAX_STRINGS:
            self.fail(f"{key} claims {count} texts, more than {MAX_STRINGS}")
        begin = self.at
        if kind == STRING:
            self._skip_strings(key, count)
        else:
            self._need(begin + count * least)
            self.at = begin + count * least
        return Array(kind, count, memoryview(self.data)[begin : self.at])

    def _skip_strings(self, key: str, count: int) -> None:
        unpack, at = struct.Struct("<Q").unpack_from, self.at
        data = self.data
        for _ in range(count):
            if at + 8 > len(data):
                data = self._need(at + 8)
            at += 8 + unpack(data, at)[0]
            if at > self.limit:
                self.fail(f"{key} has a text that reaches beyond the end")
        self._need(at)
        self.at = at

    def _tensor(self) -> tuple[str, TensorType, tuple[int, ...], int]:
        name = self._text("a tensor's name", MAX_NAME)
        count = self._integer("<I")
        if not 1 <= count <= MAX_DIMENSIONS:
            self.fail(f"tensor {name} has {count} dimensions, 1 to {MAX_DIMENSIONS} can be")
        shape = tuple(self._integer("<Q") for _ in range(count))[::-1]
        number, offset = self._integer("<I"), self._integer("<Q")
        if number not in TYPES:
            self.fail(f"tensor {name} is of the unknown type {number}", "update infeng, or use another copy")
        if any(not 0 < size < 1 << 48 for size in shape) or math.prod(shape) >= 1 << 60:
            self.fail(f"tensor {name} is {shape}, which no tensor can be")
        type = TYPES[number]
        if shape[-1] % type.block:
            self.fail(f"tensor {name} has rows of {shape[-1]} values, {type.name} has blocks of {type.block}")
        return name, type, shape, offset

    def _place(self, infos: list[tuple[str, TensorType, tuple[int, ...], int]]) -> None:
        """Fill ``tensors``; each must lie in the file, aligned, without overlaps."""
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            self.fail(f"general.alignment is {alignment!r}, it must be a power of two up to {MAX_ALIGNMENT}")
        begin = position = -(-self.at // alignment) * alignment
        for name, type_, shape, offset in sorted(infos, key=lambda info: info[3]):
            nbytes = math.prod(shape) // type_.block * type_.nbytes
            if name in self.tensors:
                self.fail(f"has the tensor {name} twice")
            if offset % alignment:
                self.fail(f"tensor {name} begins at {offset}, no multiple of the alignment {alignment}")
            if begin + offset < position:
                self.fail(f"tensor {name} overlaps another")
            position = begin + offset + nbytes
            if position > self.size:
                self.fail(f"tensor {name} ends at {position}, the file at {self.size}")
            self.tensors[name] = Tensor(name, type_, shape, begin + offset, nbytes)

    def _text(self, what: str, most: int) -> str:
        length = self._integer("<Q")
        if length > min(most, self.limit - self.at):
            self.fail(f"claims a text of {length} bytes for {what}")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"has a text for {what} that is not UTF-8")

    def _integer(self, code: str) -> int:
        number: int = struct.unpack(code, self._take(struct.calcsize(code)))[0]
        return number

    def _take(self, count: int) -> bytes:
        data = self._need(self.at + count)
        self.at += count
        return data[self.at - count : self.at]

    def _need(self, end: int) -> bytes:
        """Read up to ``end``; raises ModelError beyond the limit of the header."""
        if end > self.limit:
            why = f"has a header of more than {MAX_HEADER} bytes" if self.size > MAX_HEADER else "ends in its header"
            self.fail(why)
        while len(self.data) < end:
            more = os.pread(
                self.handle, min(max(FIRST_READ, len(self.data)), self.limit - len(self.data)), len(self.data)
            )
            if not more:
                self.fail("was cut while it was read")
            self.data += more
        return self.data


def _strings(data: memoryview, count: int) -> Iterator[tuple[int, int]]:
    unpack, at = struct.Struct("<Q").unpack_from, 0
    for _ in range(count):
        begin = at + 8
        at = begin + unpack(data, at)[0]
        yield begin, at


def fail(path: Path, why: str, remedy: str = DAMAGED) -> NoReturn:
    """Raise the ModelError of a file."""
    raise ModelError(f"{path}", why, remedy)
