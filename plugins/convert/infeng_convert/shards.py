"""Writing the weight files of an engine-native directory, one tensor in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_convert.tensor_files import Entry, write_all
from infeng_convert.tensor_files import header as tensor_header

MAX_SHARD_BYTES = 4 << 30  # as Hugging Face shards: some file systems and tools stop at 4 GiB


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
    first = tensor_header(entries)
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
