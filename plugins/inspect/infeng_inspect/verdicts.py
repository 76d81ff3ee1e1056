"""Verdicts about libraries, kept between runs: does each load, which problems fit its kernels, are results right.

There is one file per library content, processor features, ABI version and reference library. Each verdict is appended
as a line: the CRC-32 of the rest in hex, a space, and ``[key, value]`` as JSON. A changed library has another sha256
and is tried again. Damaged lines, and files that another user could have written, are ignored.
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

from infeng_core.api import ResourceError, bytes_of, cache_root, get_logger, own_file
from infeng_core.api.kernels import native

CASES = 4  # raised when the checks themselves, or the form of the lines, change
MOST_BYTES = 16 << 20
"""Bytes of a file; thousands of kernels and problems take a few MB. A larger file is started anew."""
MOST_LINE = 64 << 10
"""Bytes of a line; a verdict that is longer, by the library's own description, is not kept."""

_log = get_logger(__name__)


def cache_dir() -> Path:
    """Return the user's cache folder; for a user without a home, a folder that keeps nothing."""
    try:
        return cache_root()
    except ResourceError:
        return Path(os.devnull) / "infeng"


_KEPT: OrderedDict[Path, tuple[bytes, dict[str, dict[str, Any]]]] = OrderedDict()
"""The content of some files as last read, and its parsed form, so that the next engine of this process reads only
lines appended since.
"""
_MOST_KEPT = 8

_FOLDERS = 2
"""Folders above a file: the folder of verdicts, and the cache."""


class Verdicts:
    """The verdicts about one library."""

    def __init__(self, library: str, judge: str, features: Iterable[str], folder: Path | None = None) -> None:
        """Take the sha256 of the library and of the reference, and the features that the library may use."""
        abi = ".".join(map(str, native.ABI_VERSION))
        identity = f"{CASES} {abi} {native.NUMERICS} {judge} {','.join(sorted(features))}"
        name = f"{library[:32]}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsonl"
        self.path = (folder if folder is not None else cache_dir()) / "verdicts" / name
        self._data = self._read()

    def get(self, key: str) -> dict[str, Any] | None:
        """Return what was stored under ``key``, or None."""
        return self._data.get(key)

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Store ``value``. A cache that cannot be written, or that belongs to another user, only costs time."""
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
    """Warn once of a cache that is ignored."""
    _log.warning("the cache of kernel checks is ignored, so kernels are checked again at each start", reason=reason)


def _line(key: str, value: Mapping[str, Any]) -> bytes:
    data = json.dumps([key, value], separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(data), data)


def _pairs(content: bytes) -> dict[str, dict[str, Any]]:
    """Return the verdicts of all undamaged lines."""
    lines = [data for data in map(_checked, content.split(b"\n")) if data]
    # One parse of all lines takes a third of the time of one per line. A line with its checksum is one that ``put``
    # wrote.
    return dict(json.loads(b"[%b]" % b",".join(lines)))


def _checked(line: bytes) -> bytes:
    """Return the JSON of a line; nothing if its checksum differs."""
    checksum, _, data = line.partition(b" ")
    return data if checksum == b"%08x" % zlib.crc32(data) else b""
