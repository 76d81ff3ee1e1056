"""Segment files of saved prefixes: those of a directory, whoever writes them, and one that this process appends to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import InfengError, get_logger, read_own, replace_file
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
    """The segments of a directory by their numbers; larger ones are newer."""

    def __init__(self, directory: Path, kind: Kind) -> None:
        """Read and make those of ``kind``; those of others lie beside them."""
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
        """Return whether an open segment is of this kind; says so of what is no segment."""
        header = os.pread(handle, HEADER_BYTES, 0)
        if header != self._kind.segment_header():
            if not is_segment(header):
                _log.warning("no file of saved prefixes", path=str(self.path(number)))
            return False
        return True

    def digests(self, handle: int, number: int, first: int, end: int) -> Iterator[bytes | None]:
        """Give what records [first, end) stand for: from the index as far as it goes, then from the segment itself."""
        heads = b""
        if first == 0 and self.index_path(number).exists():
            try:
                found = self._kind.heads(read_own(self.index_path(number), folders=0))
            except InfengError:
                found = None
            if found is None:
                _log.warning("a damaged index of saved prefixes is not used", path=str(self.index_path(number)))
            heads = (found or b"")[: end * HEAD_BYTES]
        yield from digests_of(heads)
        for slot in range(first + len(heads) // HEAD_BYTES, end):
            yield digest_of(os.pread(handle, HEAD_BYTES, HEADER_BYTES + slot * self._kind.stride))

    def sizes(self) -> dict[int, int]:
        """Return the bytes of every segment, of whatever kind, the oldest first."""
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
        """Remove a segment with its index unless somebody writes it or it is none; return whether it is gone."""
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
        """Write the index of a segment where it lacks some records."""
        if writer.is_dirty and writer.is_there():
            replace_file(self.index_path(writer.number), self._kind.index(writer.heads()))
            writer.is_dirty = False


class Writer:
    """A segment that this process appends to, under its lock."""

    def __init__(self, path: Path, number: int, kind: Kind, handle: int) -> None:
        """Append to an open file that holds no record yet."""
        self.number = number
        self.count = 0  # records
        self.is_dirty = True  # the index lacks some
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
        """Return a writer for a file of this kind, None where it is none, is gone or has a writer."""
        try:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        writer = Writer(path, number, kind, handle)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if writer.is_there() and os.pread(handle, HEADER_BYTES, 0) == kind.segment_header():
                writer.count = kind.count(os.fstat(handle).st_size)  # a record that did not end is written over
                return writer
        writer.close()
        return None

    @property
    def size(self) -> int:
        """Bytes of the file, in whole records."""
        return HEADER_BYTES + self.count * self._kind.stride

    def is_there(self) -> bool:
        """Return whether the file still has its name."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._handle))
        except FileNotFoundError:
            return False

    def append(self, records: Sequence[tuple[Place, NDArray[np.uint8]]]) -> None:
        """Write records behind the others; raises OSError, and then has written none."""
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
        """Give the lock back."""
        os.close(self._handle)


def _write(handle: int, parts: Sequence[bytes | memoryview], begin: int) -> None:
    """Write all of ``parts`` from byte ``begin`` on; raises OSError."""
    for first in range(0, len(parts), 512):  # the system takes 1024 at once
        left = [memoryview(part).cast("B") for part in parts[first : first + 512] if len(part)]
        while left:
            done = os.pwritev(handle, left, begin)
            begin += done
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if left:
                left[0] = left[0][done:]
