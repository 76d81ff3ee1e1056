"""Reading a safetensors file into memory at once: what is used afterwards cannot change under its reader.

A mapped file that somebody overwrites, as people do who train while they serve, ends the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import AdapterError, ModelError
from infeng_core.files import reading
from infeng_core.formats.huggingface import FLOAT_DTYPES, widened
from infeng_core.formats.safetensors import NUMPY_DTYPES, REMEDY, Header, TensorInfo
from infeng_core.formats.shards import aligned_bytes

DIGEST_CHUNK = 1 << 20


@contextlib.contextmanager
def as_adapter_error(path: Path) -> Iterator[None]:
    """Turn what the shared readers raise about a file, or the system about ``path``, into an AdapterError."""
    try:
        with reading(path):
            yield
    except ModelError as error:
        raise AdapterError(error.what, error.why, error.remedy) from None


def read_bytes(path: Path, begin: int, count: int) -> NDArray[np.uint8]:
    """Return ``count`` bytes of a file from byte ``begin`` on, 64-byte aligned; AdapterError where there are fewer."""
    out = aligned_bytes(count)
    with path.open("rb", buffering=0) as file:
        _fill(file.fileno(), out.data, begin, path)
    return out


def read_digested(path: Path, begin: int, count: int) -> tuple[NDArray[np.uint8], str]:
    """Return ``count`` bytes as ``read_bytes`` does, and their ``digest``, hashed while they are in a core's cache."""
    out = aligned_bytes(count)
    with path.open("rb", buffering=0) as file:

        def load(first: int, chunk: memoryview) -> memoryview:
            _fill(file.fileno(), chunk, begin + first, path)
            return chunk

        return out, digest(out, load)


def digest(data: NDArray[np.uint8], load: Callable[[int, memoryview], memoryview] = lambda _, chunk: chunk) -> str:
    """Return the sha256 over the sha256 of each MiB, by two threads; ``load(first byte, chunk)`` may fill it first."""
    view = data.data

    def part(first: int) -> bytes:
        return hashlib.sha256(load(first, view[first : first + DIGEST_CHUNK])).digest()

    with ThreadPoolExecutor(2, "infeng-digest") as pool:
        parts = list(pool.map(part, range(0, len(view), DIGEST_CHUNK)))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _fill(handle: int, view: memoryview, begin: int, path: Path) -> None:
    done = 0
    while done < len(view):
        got = os.preadv(handle, [view[done : done + (1 << 26)]], begin + done)
        if got == 0:
            raise AdapterError(f"{path}", f"ends {len(view) - done} bytes too early", REMEDY)
        done += got


class TensorFile:
    """The tensors of a file whose header was checked, all read into memory."""

    def __init__(self, path: Path, header: Header) -> None:
        """Read the data; raises AdapterError."""
        self.path = path
        self.header = header
        end = max((info.begin + info.nbytes for info in header.tensors.values()), default=header.data_begin)
        self._data = read_bytes(path, header.data_begin, end - header.data_begin)

    def floats(self, name: str) -> NDArray[np.float32]:
        """Return a tensor as float32; raises AdapterError for another kind of number, NaN and infinity."""
        info: TensorInfo = self.header.tensors[name]
        if info.dtype not in FLOAT_DTYPES:
            raise AdapterError(
                f"{self.path}", f"tensor {name} is {info.dtype}, it must be F32, F16 or BF16", "save the adapter again"
            )
        dtype: Any = np.dtype(NUMPY_DTYPES[info.dtype])
        begin = info.begin - self.header.data_begin
        array = self._data[begin : begin + info.nbytes]
        if begin % dtype.itemsize:
            array = array.copy()
        values = array.view(dtype).reshape(info.shape)
        wide = values if values.dtype == np.float32 else widened(values)
        if not np.isfinite(wide).all():
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(wide))[0])
            why = f"tensor {name} holds {wide[at]} at {at}"
            raise AdapterError(f"{self.path}", why, "the training diverged or the file is damaged: use another copy")
        return wide
