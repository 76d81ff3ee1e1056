"""What was learnt about a library, kept between runs: does it load, what do its kernels accept, are they right.

One file per library content, processor features, ABI version and judge, to which every answer is appended as a line:
the CRC-32 of what follows in hex, a space, and ``[key, value]`` as JSON. A changed library has another sha256 and is
tried again. A damaged line is as good as none, and so is a file that somebody else could have written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from infeng_core import _native
from infeng_core.errors import ResourceError
from infeng_core.files import bytes_of, cache_root, own_file
from infeng_core.log import get_logger

CASES = 4  # raised when the checks themselves, or the form of the lines, change
MOST_BYTES = 16 << 20
"""Of a file; thousands of kernels and problems take a few MB. A larger one is begun anew."""
MOST_LINE = 64 << 10
"""Bytes of a line; what a library says of itself may be longer, and then it is tried each time."""

_log = get_logger(__name__)


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

_FOLDERS = 2
"""Above a file: that of the verdicts, and the cache."""


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
        """Store ``value``; a cache that cannot be written or is not ours is not an error, it only costs time."""
        self._data[key] = dict(value)
        line = _line(key, value)
        if len(line) > MOST_LINE:
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with contextlib.suppress(OSError, ResourceError):
            for folder in reversed(self.path.parents[:_FOLDERS]):
                folder.mkdir(0o755, parents=True, exist_ok=True)
            with own_file(self.path, flags=flags, folders=_FOLDERS) as handle:
                os.write(handle, line)  # one write: lines of several processes do not mix

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            if not self.path.is_file():
                return {}
            with own_file(self.path, folders=_FOLDERS) as handle:
                if os.fstat(handle).st_size > MOST_BYTES:
                    self.path.unlink()
                    return {}
                content = bytes_of(handle, self.path, MOST_BYTES, ResourceError, "")
        except OSError:
            return {}
        except ResourceError as error:
            _say(str(error))
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


@lru_cache(maxsize=256)
def _say(reason: str) -> None:
    """Warn once of a cache that is not believed."""
    _log.warning("what was learnt about kernels is not believed, and is learnt again at each start", reason=reason)


def _line(key: str, value: Mapping[str, Any]) -> bytes:
    data = json.dumps([key, value], separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(data), data)


def _pairs(content: bytes) -> dict[str, dict[str, Any]]:
    """Return what lines say, without those that are not as they were written."""
    lines = [data for data in map(_checked, content.split(b"\n")) if data]
    # At once: a third of the time of one line after another. What has its checksum is what ``put`` wrote.
    return dict(json.loads(b"[%b]" % b",".join(lines)))


def _checked(line: bytes) -> bytes:
    """Return the JSON of a line, nothing where its checksum is another."""
    checksum, _, data = line.partition(b" ")
    return data if checksum == b"%08x" % zlib.crc32(data) else b""
