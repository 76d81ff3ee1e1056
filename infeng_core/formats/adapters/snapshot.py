"""A consistent snapshot of an adapter's files, read into memory while others may write them.

Adapters may be written by a training run while they are served. A mapped file that is overwritten ends the process
with SIGBUS, and one that changes during a read gives contents that never existed. So nothing is mapped, and a read
counts only if no file has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import AdapterError, ModelError
from infeng_core.files import bytes_of, model_file, opened, read_into, reading
from infeng_core.formats.safetensors import Header, header_of
from infeng_core.formats.shards import aligned_bytes

DIGEST_CHUNK = 1 << 20
FEW_CHUNKS = 4  # hashed by the calling thread: a millisecond or two
PAUSE = 0.02  # seconds: more than a tick of the clock that stamps files, within which two writes get one time
TRIES = 5

T = TypeVar("T")


@contextlib.contextmanager
def as_adapter_error(path: Path) -> Iterator[None]:
    """Turn the errors of the shared readers, and system errors about ``path``, into an AdapterError."""
    try:
        with reading(path):
            yield
    except ModelError as error:
        raise AdapterError(error.what, error.why, error.remedy) from None


def read_settled(directory: Path, read: Callable[[Snapshot], T]) -> T:
    """Return the result of ``read`` on files that do not change meanwhile; raises AdapterError.

    If they change, ``read`` is called again, a few times.
    """
    for attempt in range(TRIES):
        with contextlib.ExitStack() as stack, as_adapter_error(directory):
            files = Snapshot(stack)
            try:
                found = read(files)
            except (AdapterError, ModelError):
                if files.is_unchanged():
                    raise
            else:
                if files.is_unchanged():
                    return found
        time.sleep(PAUSE * 2**attempt)
    raise AdapterError(f"{directory}", "is written while it is read", "load it when it is complete")


class Snapshot:
    """Regular files, each opened once."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        """The files are closed with ``stack``."""
        self._stack = stack
        self._opened: dict[Path, tuple[int, tuple[int, ...]]] = {}
        self._is_settled = True

    def is_unchanged(self) -> bool:
        """Return whether no file has changed since it was opened, nor so shortly before that its time would not show
        it."""
        with contextlib.suppress(OSError):
            return self._is_settled and all(
                stamp == _stamp(os.fstat(handle)) == _stamp(path.stat())
                for path, (handle, stamp) in self._opened.items()
            )
        return False

    def text(self, path: Path, limit: int, remedy: str) -> bytes:
        """Return all of a file of ``limit`` bytes at most; raises ModelError."""
        return bytes_of(self._open(path, remedy), path, limit, ModelError, remedy)

    def header(self, path: Path) -> Header:
        """Return the checked header of a safetensors file; raises ModelError."""
        return header_of(self._open(path), path)

    def data(self, path: Path, begin: int, count: int) -> NDArray[np.uint8]:
        """Return ``count`` bytes from byte ``begin`` on, 64-byte aligned; ModelError if there are fewer."""
        out = aligned_bytes(count)
        read_into(self._open(path), out.data, begin, path)
        return out

    def digested(self, path: Path, begin: int, count: int) -> tuple[NDArray[np.uint8], str]:
        """Return bytes as ``data`` does, and their ``digest``, hashed while they are in a core's cache."""
        out, handle = aligned_bytes(count), self._open(path)

        def load(first: int, chunk: memoryview) -> memoryview:
            read_into(handle, chunk, begin + first, path)
            return chunk

        return out, digest(out, load)

    def _open(self, path: Path, remedy: str = "download or write the file again") -> int:
        if path not in self._opened:
            real = model_file(path.parent, path.name)
            handle = self._stack.enter_context(opened(real, ModelError, remedy))
            fresh = _seconds_of_rest(handle)
            if fresh > 0:
                time.sleep(fresh)
                self._is_settled &= _seconds_of_rest(handle) <= 0
            self._opened[path] = handle, _stamp(os.fstat(handle))
        return self._opened[path][0]


def _seconds_of_rest(handle: int) -> float:
    """Return the seconds until another write of a recently written file would get a different time."""
    age = time.time() - os.fstat(handle).st_ctime
    return PAUSE - age if age >= 0 else 0.0  # in the future: a clock was set, or another computer wrote it


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def digest(data: NDArray[np.uint8], load: Callable[[int, memoryview], memoryview] = lambda _, chunk: chunk) -> str:
    """Return the sha256 over the sha256 of each MiB; ``load(first byte, chunk)`` may fill it first.

    Two threads share the chunks, but not so few that starting threads takes longer than hashing.
    """
    view = data.data

    def part(first: int) -> bytes:
        return hashlib.sha256(load(first, view[first : first + DIGEST_CHUNK])).digest()

    chunks = range(0, len(view), DIGEST_CHUNK)
    if len(chunks) <= FEW_CHUNKS:
        parts = list(map(part, chunks))
    else:
        with ThreadPoolExecutor(2, "infeng-digest") as pool:
            parts = list(pool.map(part, chunks))
    return hashlib.sha256(b"".join(parts)).hexdigest()
