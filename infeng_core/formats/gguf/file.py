"""Strict reading of GGUF files: no count, length, dimension or offset is believed before it is checked.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian: ``GGUF``, u32 version, u64 tensors,
u64 metadata entries; the entries (key, u32 type, value); the tensors (name, u32 dimensions, u64 each, u32 type, u64
offset); zeros up to ``general.alignment``; the data, from which offsets count. A string is a u64 length and UTF-8.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import ModelError
from infeng_core.files import opened, read_into
from infeng_core.formats.gguf.types import TYPES, TensorType
from infeng_core.formats.shards import aligned_bytes
from infeng_core.models.fields import Fields

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER = 256 << 20  # the largest vocabularies take 20 MB
MAX_ENTRIES = 1 << 16
MAX_TENSORS = 1 << 17
MAX_NAME = 256
MAX_STRINGS = 1 << 22  # of one list; the largest vocabularies have 300,000
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
MAX_FILES = 1 << 12
FIRST_READ = 1 << 20
SPLIT = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")

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
GONE = "download the file again"
DAMAGED = "the file is damaged or incomplete: download or write it again"


def is_gguf(path: Path) -> bool:
    """Return whether ``path`` is a file that is, or calls itself, GGUF."""
    if not path.is_file():
        return False
    if path.suffix == ".gguf":
        return True
    with opened(path, ModelError, GONE) as handle:
        return os.pread(handle, len(MAGIC), 0) == MAGIC


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: ``nbytes`` bytes from byte ``begin`` of its file on; ``shape`` as in NumPy, the rows first."""

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
    """An array of the metadata, decoded when it is asked for."""

    kind: int
    count: int
    data: memoryview  # of the items

    def strings(self) -> list[str]:
        """Return the strings; raises ValueError for another kind, and for what is not UTF-8."""
        if self.kind != STRING:
            raise ValueError("is no list of texts")
        return [str(self.data[begin:end], "utf-8") for begin, end in _strings(self.data, self.count)]

    def numbers(self) -> NDArray[Any]:
        """Return the numbers, (count,); raises ValueError for texts."""
        if self.kind not in SCALARS:
            raise ValueError("is no list of numbers")
        return np.frombuffer(self.data, SCALARS[self.kind])


class GgufFile:
    """One file's metadata and tensors.

    Nothing is mapped and nothing stays open: a file that is cut, written or replaced while it is read is an error.
    """

    def __init__(self, path: Path) -> None:
        """Read and check the header of ``path``; raises ModelError naming file, key or tensor, and reason."""
        self.path = path
        with opened(path, ModelError, GONE) as handle:
            self._stamp = _stamp(handle)
            header = _Header(handle, path)
            self.metadata: Mapping[str, Any] = header.metadata  # scalars as such, lists as Array
            self.tensors: Mapping[str, Tensor] = header.tensors

    @cached_property
    def fields(self) -> Fields:
        """The metadata, read with types and bounds checked."""
        return Fields(self.metadata, self.path, remedy="use another copy of the model")

    def strings(self, key: str) -> list[str]:
        """Return a list of texts; raises ModelError."""
        try:
            return self._array(key).strings()
        except ValueError as error:
            self.fields.fail(key, f"is no list of texts in UTF-8 ({error})")

    def numbers(self, key: str) -> NDArray[Any]:
        """Return a list of numbers, (count,); raises ModelError."""
        try:
            return self._array(key).numbers()
        except ValueError:
            self.fields.fail(key, "is no list of numbers")

    def _array(self, key: str) -> Array:
        found = self.metadata.get(key)
        if not isinstance(found, Array):
            self.fields.fail(key, "is missing" if found is None else "is no list")
        return found

    def rows(self, name: str, first: int, count: int) -> NDArray[np.uint8]:
        """Return ``count`` rows of a tensor from row ``first`` on, (count, bytes of a row); raises ModelError."""
        tensor = self.tensors[name]
        out = aligned_bytes(count * tensor.row_bytes)
        with opened(self.path, ModelError, GONE) as handle:
            read_into(handle, out.data, tensor.begin + first * tensor.row_bytes, self.path)
            if _stamp(handle) != self._stamp:
                _fail(self.path, "was changed while it was read", "wait until it is written, and try again")
        return out.reshape(count, tensor.row_bytes)


def files_of(path: Path) -> list[Path]:
    """Return the files that a GGUF is made of, by their names: ``NAME-00001-of-00003.gguf`` and its two others.

    Raises ModelError where one of them is missing.
    """
    found = SPLIT.fullmatch(path.name)
    if found is None:
        return [path]
    count = int(found["count"])
    if not 1 <= count <= MAX_FILES:
        _fail(path, f"calls itself one of {count} files", f"give a model of at most {MAX_FILES} files")
    paths = [path.with_name(f"{found['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = next((other for other in paths if not other.is_file()), None)
    if missing is not None:
        _fail(missing, f"is missing, of {count} files of one model", "download the missing file")
    return paths


def open_files(path: Path) -> list[GgufFile]:
    """Open a GGUF, all files of a split one; the first has the metadata. Raises ModelError."""
    files = [GgufFile(one) for one in files_of(path)]
    seen: set[str] = set()
    for number, file in enumerate(files):
        fields = file.fields
        if fields.integer("split.count", 0, MAX_FILES, 1) not in (len(files), 0 if len(files) == 1 else len(files)):
            fields.fail("split.count", f"is {fields.data['split.count']}, not {len(files)} as in its name", GONE)
        if fields.integer("split.no", 0, MAX_FILES, number) != number:
            fields.fail("split.no", f"is {fields.data['split.no']}, not {number} as in its name", GONE)
        twice = seen & file.tensors.keys()
        if twice:
            _fail(file.path, f"tensor {min(twice)} is in another file too", GONE)
        seen |= file.tensors.keys()
    total = files[0].fields.integer("split.tensors.count", 0, MAX_TENSORS * MAX_FILES, len(seen))
    if len(files) > 1 and total != len(seen):
        files[0].fields.fail("split.tensors.count", f"is {total}, the files hold {len(seen)} tensors", GONE)
    return files


class _Header:
    """Reads what comes before the data, as much as it says and the limits allow."""

    def __init__(self, handle: int, path: Path) -> None:
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
        _fail(self.path, why, remedy)

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
        """Fill ``tensors``; each must lie in the file, on a multiple of the alignment, without overlapping another."""
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
        """Read on until ``end``; raises ModelError where the header cannot reach so far."""
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


def _stamp(handle: int) -> tuple[int, ...]:
    """Return what tells that an open file is another one, or was written since."""
    found = os.fstat(handle)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _fail(path: Path, why: str, remedy: str = DAMAGED) -> NoReturn:
    raise ModelError(f"{path}", why, remedy)
