"""Files of /proc and /sys: an unreadable file counts as empty, and missing values are left out."""

from __future__ import annotations

import re
from pathlib import Path


def text(path: Path | str) -> str:
    """Return the content of a file, stripped of white space, or ""."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def sizes(path: Path | str, **keys: str) -> dict[str, int]:
    """Return the bytes given by lines such as ``MemTotal:  1024 kB``, under the names of ``keys``."""
    said = text(path)
    found = {name: re.search(rf"\b{key}:\s+(\d+) kB", said) for name, key in keys.items()}
    return {name: int(match[1]) * 1024 for name, match in found.items() if match}
