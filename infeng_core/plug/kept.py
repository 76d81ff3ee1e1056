"""Documents of plugin.yaml files as they were last read, kept between runs in the user's cache.

Reading the YAML of every plugin, with the import of PyYAML, takes longer than everything else that ``infeng --help``
does. The file holds JSON: for each plugin.yaml its state (times, size and inode), its data and the lines of its keys. A
plugin.yaml of another state is read again, and one that is gone is left out. A cache that is damaged, or that another
user may write, is not used.
"""

from __future__ import annotations

import contextlib
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from infeng_core.errors import InfengError
from infeng_core.files import cache_root, exists, read_own, require_trusted
from infeng_core.settings import yamlfile
from infeng_core.settings.yamlfile import Document
from infeng_core.version import __version__

FORM = 1
"""Raised when the form of the file, or what YAML means, changes."""
NAME = "plugins.json"
MOST_BYTES = 4 << 20
MOST_FILES = 256


class Kept:
    """The documents in one file."""

    def __init__(self, path: Path) -> None:
        """Read the file, if there is one."""
        self._path = path
        self._version = f"{__version__} {FORM}"
        self._files: dict[str, Any] = {}
        self._is_changed = False
        with contextlib.suppress(InfengError, ValueError, LookupError, TypeError):
            content = json.loads(read_own(path, MOST_BYTES))
            if content["version"] == self._version:
                self._files = dict(content["files"])

    def document(self, path: Path, state: tuple[int, ...]) -> Document:
        """Return the document of a plugin.yaml in that state; raises ManifestError where it cannot be read."""
        try:
            found = self._files[str(path)]
            if found["state"] == list(state):
                return Document(path, found["data"], {tuple(key): line for key, line in found["lines"]})
        except (LookupError, TypeError, ValueError):  # not there, or damaged
            pass
        document = yamlfile.read(path)
        lines = [(key, line) for key, line in document.lines.items()]
        self._files.pop(str(path), None)
        entry = {"state": state, "data": document.data, "lines": lines}
        with contextlib.suppress(TypeError, ValueError):  # of values that JSON does not have, such as dates
            json.dumps(entry)
            self._files[str(path)] = entry
            self._is_changed = True
        return document

    def save(self) -> None:
        """Write the file if anything was read anew; a cache that cannot be written only costs time."""
        if not self._is_changed:
            return
        self._is_changed = False
        there = [(path, entry) for path, entry in self._files.items() if exists(path)]
        files = dict(there[-MOST_FILES:])
        partial = self._path.with_name(f".{NAME}.{os.getpid()}")
        with contextlib.suppress(OSError, InfengError, ValueError):
            data = json.dumps({"version": self._version, "files": files}).encode()
            self._path.parent.mkdir(0o755, parents=True, exist_ok=True)
            require_trusted(self._path.parent)
            try:
                handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                partial.replace(self._path)
            finally:
                partial.unlink(missing_ok=True)


def kept() -> Kept:
    """Return the documents in the user's cache; for one without a home nothing is kept."""
    try:
        return _kept(cache_root() / NAME)
    except InfengError:
        return _kept(Path(os.devnull) / NAME)


_kept = lru_cache(maxsize=4)(Kept)
