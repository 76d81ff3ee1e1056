"""What was learnt about a library, kept between runs: does it load, what do its kernels accept, are they right.

One file per library content, processor features, ABI version and judge, to which every answer is appended as a line of
JSON, ``[key, value]``. A changed library has another sha256 and is tried again; a line that cannot be read is as good
as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from infeng_core import _native
from infeng_core.errors import ResourceError
from infeng_core.files import cache_root

CASES = 3  # raised when the checks themselves change


def cache_dir() -> Path:
    """Return the user's cache, or for one without a home a place where nothing is kept."""
    try:
        return cache_root()
    except ResourceError:
        return Path(os.devnull) / "infeng"


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file; raises OSError."""
    status = path.stat()
    return _sha256(path, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=256)
def _sha256(path: Path, *_identity: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_KEPT: OrderedDict[Path, tuple[bytes, dict[str, dict[str, Any]]]] = OrderedDict()
"""What was last read of some files and what that says: the next engine of this process reads only what has come since.
"""
_MOST_KEPT = 8


class Verdicts:
    """The verdicts about one library."""

    def __init__(self, library: str, judge: str, features: Iterable[str], folder: Path | None = None) -> None:
        """Take the sha256 of the library and of the reference, and the features that the library may use."""
        abi = ".".join(map(str, _native.ABI_VERSION))
        identity = f"{CASES} {abi} {judge} {','.join(sorted(features))}"
        name = f"{library[:32]}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsonl"
        self.path = (folder if folder is not None else cache_dir()) / "verdicts" / name
        self._data = self._read()

    def get(self, key: str) -> dict[str, Any] | None:
        """Return what was stored under ``key``, or None."""
        return self._data.get(key)

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Store ``value``; a cache that cannot be written is not an error, it only costs time."""
        self._data[key] = dict(value)
        line = json.dumps([key, value], separators=(",", ":")) + "\n"
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:  # one write: lines of several processes do not mix
                file.write(line.encode())

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            content = self.path.read_bytes()
        except OSError:
            return {}
        known, found = _KEPT.pop(self.path, (b"", {}))
        if not content.startswith(known):
            known, found = b"", {}
        whole = content[: content.rfind(b"\n") + 1]
        found = {**found, **_pairs(whole[len(known) :])}
        _KEPT[self.path] = whole, found
        with contextlib.suppress(KeyError):  # another thread may have been first
            while len(_KEPT) > _MOST_KEPT:
                _KEPT.popitem(last=False)
        return {**found, **_pairs(content[len(whole) :])}


def _pairs(content: bytes) -> dict[str, dict[str, Any]]:
    """Return what lines say, without those that cannot be read."""
    lines = content.splitlines()
    try:
        pairs = json.loads(b"[%b]" % b",".join(lines))  # a third of the time of one line after another
    except ValueError:
        pairs = [pair for line in lines for pair in _parsed(line)]
    found = {}
    for pair in pairs:
        try:
            key, value = pair
            found[key] = {**value}
        except (ValueError, TypeError):
            continue
    return found


def _parsed(line: bytes) -> list[Any]:
    """Return what a line holds, nothing where it is damaged."""
    try:
        return [json.loads(line)]
    except ValueError:
        return []
