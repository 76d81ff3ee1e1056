"""Strict reading of GGUF files: no count, length, dimension or offset is believed before it is checked.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian: ``GGUF``, u32 version, u64 tensors,
u64 metadata entries; the entries (key, u32 type, value); the tensors (name, u32 dimensions, u64 each, u32 type, u64
offset); zeros up to ``general.alignment``; the data, from which offsets count. A string is a u64 length and UTF-8.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import ModelError
from infeng_core.files import opened, read_into
from infeng_core.formats.gguf.header import MAGIC, MAX_TENSORS, Array, Header, Tensor, fail
from infeng_core.formats.shards import aligned_bytes
from infeng_core.models.fields import Fields

MAX_FILES = 1 << 12
SPLIT = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
GONE = "download the file again"


def is_gguf(path: Path) -> bool:
    """Return whether ``path`` is a file that is, or calls itself, GGUF."""
    if not path.is_file():
        return False
    if path.suffix == ".gguf":
        return True
    with opened(path, ModelError, GONE) as handle:
        return os.pread(handle, len(MAGIC), 0) == MAGIC


class GgufFile:
    """One file's metadata and tensors.

    Nothing is mapped and nothing stays open: a file that is cut, written or replaced while it is read is an error.
    """

    def __init__(self, path: Path) -> None:
        """Read and check the header of ``path``; raises ModelError naming file, key or tensor, and reason."""
        self.path = path
        with opened(path, ModelError, GONE) as handle:
            self._stamp = _stamp(handle)
            header = Header(handle, path)
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
                fail(self.path, "was changed while it was read", "wait until it is written, and try again")
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
        fail(path, f"calls itself one of {count} files", f"give a model of at most {MAX_FILES} files")
    paths = [path.with_name(f"{found['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = next((other for other in paths if not other.is_file()), None)
    if missing is not None:
        fail(missing, f"is missing, of {count} files of one model", "download the missing file")
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
            fail(file.path, f"tensor {min(twice)} is in another file too", GONE)
        seen |= file.tensors.keys()
    total = files[0].fields.integer("split.tensors.count", 0, MAX_TENSORS * MAX_FILES, len(seen))
    if len(files) > 1 and total != len(seen):
        files[0].fields.fail("split.tensors.count", f"is {total}, the files hold {len(seen)} tensors", GONE)
    return files


def _stamp(handle: int) -> tuple[int, ...]:
    """Return what tells that an open file is another one, or was written since."""
    found = os.fstat(handle)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
