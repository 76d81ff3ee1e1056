"""YAML files with the line of every value kept, so that an error can name the place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from infeng_core.errors import ManifestError
from infeng_core.files import read_text
from infeng_core.record import Record, entry

if TYPE_CHECKING:
    from infeng_core.yamltree import Key

__all__ = ["Document", "parse", "read", "type_name"]

MAX_BYTES = 1 << 20


class Document(Record):
    """A parsed file: plain data, and the 1-based line of each key path."""

    path: Path
    data: Mapping[str, object]
    lines: Mapping[Key, int] = entry(repr=False)

    def place(self, key: Key) -> str:
        """Return ``"engine.yaml:7: kernels.order"``, the start of every message about ``key``."""
        line = next((self.lines[key[:n]] for n in range(len(key), -1, -1) if key[:n] in self.lines), 1)
        return f"{self.path}:{line}: {'.'.join(key)}" if key else f"{self.path}:{line}"

    def require_version(self, key: str, version: int, what: str) -> None:
        """Raise ManifestError unless the file begins with its own version."""
        if self.data.get(key) != version or isinstance(self.data.get(key), bool):
            remedy = f"start the file with `{key}: {version}`"
            raise ManifestError(self.place((key,)), f"expected {version}, the {what}", remedy)


def read(path: Path) -> Document:
    """Read ``path`` as one mapping.

    Raises ManifestError for a missing, unreadable or too large file, a syntax error, a duplicate key, or a top level
    that is not a mapping.
    """
    return parse(read_text(path, MAX_BYTES, ManifestError, "check the path"), path)


def parse(text: str, path: Path) -> Document:
    """Parse ``text``; ``path`` is only named in errors."""
    from infeng_core import yamltree  # and PyYAML, which an engine without a manifest does without

    data, lines = yamltree.parse(text, path, ManifestError)
    if data is not None and not isinstance(data, dict):
        raise ManifestError(f"{path}:1", f"expected keys and values, found {type_name(data)}")
    return Document(path, data or {}, lines)


def type_name(value: object) -> str:
    """Return a readable name for the type of a YAML value."""
    names = {
        bool: "true/false",
        int: "a whole number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
    }
    return "nothing" if value is None else names.get(type(value), type(value).__name__)
