"""Strict reading of GGUF files: every count, length, dimension and offset is checked before use.

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

from infeng_core.api import ModelError, read_into
from infeng_core.api.formats import Fields, aligned_bytes, opened, reading
from infeng_gguf.header import MAGIC, MAX_TENSORS, Array, Header, Tensor, fail

MAX_FILES = 1 << 12
SPLIT = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"
ARCHITECTURE = "general.architecture"
GONE = "download the file again"


def is_gguf(path: Path) -> bool:
    """Return whether ``path`` is a file with GGUF's magic or suffix."""
    if not path.is_file():
        return False
    if path.suffix == ".gguf":
        return True
    with opened(path, ModelError, GONE) as handle:
        return os.pread(handle, len(MAGIC), 0) == MAGIC


class GgufFile:
    """One file's metadata and tensors.

    The file is neither mapped nor kept open; a file that is truncated, written or replaced meanwhile is an error.
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
    """Return the files of a GGUF by their names: ``NAME-00001-of-00003.gguf`` and the two others.

    The user has named only one, so the others must lie in its folder or, as in a hub's cache, in the folder to which
    its link leads. Raises ModelError for a missing file or a link to elsewhere.
    """
    found = SPLIT.fullmatch(path.name)
    if found is None:
        return [path]
    number, count = int(found["number"]), int(found["count"])
    if not 1 <= count <= MAX_FILES:
        fail(path, f"calls itself one of {count} files", f"give a model of at most {MAX_FILES} files")
    if not 1 <= number <= count:
        fail(path, f"calls itself number {number} of {count} files", GONE)
    paths = [path.with_name(f"{found['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = next((other for other in paths if not os.path.lexists(other)), None)
    if missing is not None:
        fail(missing, f"is missing, of {count} files of one model", "download the missing file")
    with reading(path):
        home = _real(path).parent
        for other in paths:
            if (real := _real(other)).parent != home:
                fail(other, f"is a link to {real}, away from {path.name}", "put the files of a model into one folder")
    return paths


def _real(path: Path) -> Path:
    """Return the target of a path; raises OSError, also for circular links, unlike Path.resolve."""
    return Path(os.path.realpath(path, strict=True))


def open_files(path: Path) -> list[GgufFile]:
    """Open all files of a GGUF, the first of which has the metadata. Raises ModelError."""
    paths = files_of(path)
    files: list[GgufFile] = []
    seen: set[str] = set()
    for number, one in enumerate(paths):
        file = GgufFile(one)
        _require_place(file, number, len(paths))
        if files:
            _require_same_model(files[0], file)
        twice = seen & file.tensors.keys()
        if twice:
            fail(file.path, f"tensor {min(twice)} is in another file too", GONE)
        seen |= file.tensors.keys()
        if len(seen) > MAX_TENSORS:
            fail(file.path, f"is one of {len(paths)} files with more than {MAX_TENSORS} tensors", GONE)
        files.append(file)
    for file in files if len(files) > 1 else ():
        total = file.fields.integer(TENSORS, 0, MAX_TENSORS * MAX_FILES, len(seen))
        if total != len(seen):
            file.fields.fail(TENSORS, f"is {total}, the files hold {len(seen)} tensors", GONE)
    return files


def _require_place(file: GgufFile, number: int, count: int) -> None:
    """Raise ModelError if a file's number or count of files differs from its name."""
    fields = file.fields
    said = fields.integer(COUNT, 0, MAX_FILES, 0)
    if count > 1 and not fields.has(COUNT):
        fields.fail(COUNT, f"is missing in one of {count} files by its name", GONE)
    if said != count and not (count == 1 and said == 0):
        fields.fail(COUNT, f"is {said}, not {count} as in its name", "give all files under their own names")
    if (given := fields.integer(NUMBER, 0, MAX_FILES, number)) != number:
        fields.fail(NUMBER, f"is {given}, not {number} as in its name", GONE)


def _require_same_model(first: GgufFile, other: GgufFile) -> None:
    """Raise ModelError if a further file describes another model than the first."""
    described = ("tokenizer.", f"{first.metadata.get(ARCHITECTURE)}.")
    for key, value in other.metadata.items():
        is_told = key == ARCHITECTURE or key.startswith(described)
        if is_told and not (key in first.metadata and _is_same(first.metadata[key], value)):
            other.fields.fail(key, f"is another one in {first.path.name}: they are of two models", GONE)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values of metadata are equal; NaN equals itself."""
    return type(one) is type(other) and (one == other or (one != one and other != other))


def _stamp(handle: int) -> tuple[int, ...]:
    """Return the identity, size and modification time of an open file."""
    found = os.fstat(handle)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
