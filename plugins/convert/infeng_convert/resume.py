"""The finished entries of an interrupted conversion, so that the next one continues after them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from infeng_convert.atomic import JOURNAL
from infeng_convert.tensor_files import Entry
from infeng_core.api import ResourceError, read_own

PORTION = 16 << 20  # bytes per read


class Journal:
    """A line, with the sha256, for each entry that is completely in a shard; entries are checked before they are
    used.

    ``place`` gives memory for an entry; ``take`` gets each finished entry, in the order of writing.
    """

    def __init__(
        self,
        folder: Path,
        place: Callable[[Entry], NDArray[np.uint8]],
        take: Callable[[Entry, NDArray[np.uint8]], None],
    ) -> None:
        """Read the existing lines; an incomplete last line is ignored."""
        self._path = folder / JOURNAL
        self._place, self._take = place, take
        self._digests = _digests(self._path)
        self._believed: list[tuple[str, str]] | None = []  # None: equal to the file's lines

    def read(self, entry: Entry, file: BinaryIO) -> str | None:
        """Return the sha256 of an entry that is in ``file`` at its position; None if it must be made."""
        digest = self._digests.get(entry.name)
        if digest is None:
            return None
        data = self._place(entry)
        view, got = data.data, 0
        while got < len(view) and (part := file.read(min(len(view) - got, PORTION))):
            view[got : got + len(part)] = part
            got += len(part)
        if got < len(view) or hashlib.sha256(view).hexdigest() != digest:
            self._digests.clear()  # later entries depend on this one
            return None
        self._take(entry, data)
        if self._believed is not None:
            self._believed.append((entry.name, digest))
        return digest

    def add(self, entry: Entry, digest: str) -> None:
        """Record an entry that was written."""
        self._digests.clear()  # later entries are made anew
        lines = [*(self._believed or ()), (entry.name, digest)]
        with self._path.open("a" if self._believed is None else "w", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
        self._believed = None


def _digests(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        lines = read_own(path).decode("utf-8").splitlines()
    except (ResourceError, UnicodeError):
        return {}
    for line in lines:
        try:
            name, digest = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return found
        found[str(name)] = str(digest)
    return found


def held(folder: Path, shards: Mapping[str, object]) -> int:
    """Return the bytes of the shards that are in ``folder`` already."""
    paths = [folder / name for name in shards]
    return sum(path.stat().st_size for path in paths if path.is_file())
