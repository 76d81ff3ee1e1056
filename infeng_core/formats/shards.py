"""Writing the weight files of an engine-native directory, one tensor in memory at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

ALIGN = 64
MAX_SHARD_BYTES = 4 << 30  # as Hugging Face shards: some file systems and tools stop at 4 GiB


@dataclass(frozen=True)
class Entry:
    """One tensor to write: ``shape`` of ``dtype`` ("U8" or "F32"), a multiple of 64 bytes in all."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def aligned_bytes(count: int) -> NDArray[np.uint8]:
    """Return ``count`` bytes that start on a 64-byte boundary."""
    spare: NDArray[np.uint8] = np.empty(count + ALIGN, np.uint8)
    start = -spare.ctypes.data % ALIGN
    return spare[start : start + count]


def plan_shards(entries: Iterable[Entry], limit: int = MAX_SHARD_BYTES) -> dict[str, list[Entry]]:
    """Distribute entries over files in order: a file takes entries until the next would pass ``limit``."""
    shards: list[list[Entry]] = []
    used = 0
    for entry in entries:
        if not shards or used + entry.nbytes > limit:
            shards.append([])
            used = 0
        shards[-1].append(entry)
        used += entry.nbytes
    return {f"weights-{index:05}.safetensors": shard for index, shard in enumerate(shards, 1)}


def header(entries: Iterable[Entry], metadata: Mapping[str, str] = MappingProxyType({"format": "infeng"})) -> bytes:
    """Return length and header of a safetensors file, padded with spaces so that the data starts 64-byte aligned."""
    document: dict[str, object] = {"__metadata__": dict(metadata)}
    position = 0
    for entry in entries:
        end = position + entry.nbytes
        document[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    return len(text).to_bytes(8, "little") + text


class Written(Protocol):
    """The entries that an earlier attempt wrote."""

    def read(self, entry: Entry, file: BinaryIO) -> str | None:
        """Return the sha256 of an entry that is in ``file`` at its position; None if it must be made."""

    def add(self, entry: Entry, digest: str) -> None:
        """Record an entry that was written."""


def write_shard(
    path: Path, entries: list[Entry], fill: Callable[[Entry], NDArray[np.uint8]], written: Written | None = None
) -> dict[str, str]:
    """Write one file; ``fill`` gives the bytes of each entry in turn. Return the sha256 of each entry by name.

    With ``written``, an existing file is continued after its finished entries.
    """
    digests: dict[str, str] = {}
    first = header(entries)
    goes_on = written is not None and _begins(path, first)
    with path.open("r+b" if goes_on else "wb", buffering=0) as file:
        if goes_on:
            file.seek(len(first))
        else:
            write_all(file.write, first)
        for entry in entries:
            at = file.tell()
            kept = written.read(entry, file) if written is not None and goes_on else None
            if kept is not None:
                digests[entry.name] = kept
                continue
            if goes_on:
                file.seek(at)
                file.truncate()
                goes_on = False
            data = fill(entry)
            write_all(file.write, data.data)
            digests[entry.name] = hashlib.sha256(data.data).hexdigest()
            if written is not None:
                written.add(entry, digests[entry.name])
    return digests


def _begins(path: Path, data: bytes) -> bool:
    """Return whether a file exists and begins with ``data``."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(data)) == data


def write_all(write: Callable[[memoryview], int | None], data: bytes | memoryview) -> None:
    """Write every byte: one call writes 2 GB at most, and less if the disk is nearly full."""
    rest = memoryview(data)
    while rest:
        rest = rest[write(rest) or 0 :]
