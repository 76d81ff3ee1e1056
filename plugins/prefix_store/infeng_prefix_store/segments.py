"""Segment files of saved prefixes: all segments of a directory, and the one that this process appends to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import InfengError, get_logger, read_own
from infeng_prefix_store.records import (
    HEAD_BYTES,
    HEADER_BYTES,
    Kind,
    Place,
    digest_of,
    digests_of,
    is_segment,
)

_log = get_logger(__name__)

_NAME = re.compile(r"(\d{10})\.segment")


class Segments:
    """The segments of a directory by number; a larger number is newer."""

    def __init__(self, directory: Path, kind: Kind) -> None:
        """Read and create segments of ``kind``; the directory may hold segments of other kinds too."""
        self._directory = directory
        self._kind = kind

    def path(self, number: int) -> Path:
        """Return the file of a segment."""
        return self._directory / f"{number:010}.segment"

    def index_path(self, number: int) -> Path:
        """Return the file of a segment's index."""
        return self._directory / f"{number:010}.index"

    def numbers(self) -> set[int]:
        """Return the numbers of all segments in the directory."""
        try:
            names = [_NAME.fullmatch(path.name) for path in self._directory.iterdir()]
        except OSError as error:
            _log.warning("saved prefixes cannot be read", directory=str(self._directory), error=str(error))
            return set()
        return {int(name[1]) for name in names if name}

    def is_ours(self, handle: int, number: int) -> bool:
        """Return whether an open file is a segment of this kind; logs a warning for a file that is no segment."""
        header = os.pread(handle, HEADER_BYTES, 0)
        if header != self._kind.segment_header():
            if not is_segment(header):
                _log.warning("file is not a segment of saved prefixes", path=str(self.path(number)))
            return False
        return True

    def digests(self, handle: int, number: int, first: int, end: int) -> Iterator[bytes | None]:
        """Yield the digests of records [first, end), from the index as far as it goes, then from the segment."""
        heads = b""
        if first == 0 and self.index_path(number).exists():
            try:
                found = self._kind.heads(read_own(self.index_path(number), folders=0))
            except InfengError:
                found = None
            if found is None:
                _log.warning("damaged index of saved prefixes is ignored", path=str(self.index_path(number)))
            heads = (found or b"")[: end * HEAD_BYTES]
        yield from digests_of(heads)
        for slot in range(first + len(heads) // HEAD_BYTES, end):
            yield digest_of(os.pread(handle, HEAD_BYTES, HEADER_BYTES + slot * self._kind.stride))

    def sizes(self) -> dict[int, int]:
        """Return the size in bytes of every segment of any kind by number, oldest first."""
        found = {}
        for number in sorted(self.numbers()):
            with contextlib.suppress(OSError):
                found[number] = self.path(number).stat().st_size
        return found

    def created(self) -> Writer:
        """Return a writer for a new segment."""
        number = max(self.numbers(), default=0)
        while True:
            number += 1
            self.index_path(number).unlink(missing_ok=True)
            with contextlib.suppress(FileExistsError):
                return Writer.create(self.path(number), number, self._kind)

    def remove(self, number: int) -> bool:
        """Remove a segment and its index, unless it has a writer or is no segment; return whether it is gone."""
        try:
            handle = os.open(self.path(number), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            if not is_segment(os.pread(handle, HEADER_BYTES, 0)):
                return False
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.index_path(number).unlink(missing_ok=True)
            self.path(number).unlink(missing_ok=True)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True

    def write_index(self, writer: Writer) -> None:
        """Write the index of a writer's segment if it lacks records."""
        if writer.is_dirty and writer.is_there():
            _replace_file(self.index_path(writer.number), self._kind.index(writer.heads()))
            writer.is_dirty = False


class Writer:
    """A segment that this process appends to while it holds the file's lock."""

    def __init__(self, path: Path, number: int, kind: Kind, handle: int) -> None:
        """Append to an open file without records."""
        self.number = number
        self.count = 0  # records
        self.is_dirty = True  # the index lacks records
        self._path = path
        self._kind = kind
        self._handle = handle

    @staticmethod
    def create(path: Path, number: int, kind: Kind) -> Writer:
        """Return a writer for a new file; raises FileExistsError."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            _write(handle, [kind.segment_header()], 0)
        except BaseException:
            path.unlink(missing_ok=True)
            os.close(handle)
            raise
        return Writer(path, number, kind, handle)

    @staticmethod
    def open(path: Path, number: int, kind: Kind) -> Writer | None:
        """Return a writer for an existing file, None if it is of another kind, is gone or has a writer."""
        try:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        writer = Writer(path, number, kind, handle)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if writer.is_there() and os.pread(handle, HEADER_BYTES, 0) == kind.segment_header():
                writer.count = kind.count(os.fstat(handle).st_size)  # the next append overwrites a partial record
                return writer
        writer.close()
        return None

    @property
    def size(self) -> int:
        """Bytes of the file, in whole records."""
        return HEADER_BYTES + self.count * self._kind.stride

    def is_there(self) -> bool:
        """Return whether the path still names the open file."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._handle))
        except FileNotFoundError:
            return False

    def append(self, records: Sequence[tuple[Place, NDArray[np.uint8]]]) -> None:
        """Append records: all of them, or none and OSError."""
        padding = bytes(self._kind.stride - HEAD_BYTES - self._kind.block_bytes)
        parts: list[bytes | memoryview] = []
        for place, block in records:
            block = np.ascontiguousarray(block)
            parts += (place.head(block), block.data, padding)
        self.is_dirty = True
        try:
            _write(self._handle, parts, self.size)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, self.size)
            raise
        self.count += len(records)

    def heads(self) -> bytes:
        """Return the heads of all records."""
        begins = range(HEADER_BYTES, self.size, self._kind.stride)
        return b"".join(os.pread(self._handle, HEAD_BYTES, begin) for begin in begins)

    def close(self) -> None:
        """Close the file, which releases its lock."""
        os.close(self._handle)


def _write(handle: int, parts: Sequence[bytes | memoryview], begin: int) -> None:
    """Write all of ``parts`` from byte ``begin`` on; raises OSError."""
    for first in range(0, len(parts), 512):  # IOV_MAX is 1024
        left = [memoryview(part).cast("B") for part in parts[first : first + 512] if len(part)]
        while left:
            done = os.pwritev(handle, left, begin)
            begin += done
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if left:
                left[0] = left[0][done:]


def _replace_file(path: Path, data: bytes) -> None:
    """Replace the contents of ``path``: readers see the old file or the new one. Only the owner may read it."""
    partial = path.with_name(f".{path.name}.infeng-partial")
    partial.unlink(missing_ok=True)  # left by a killed process
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
