"""Files of /proc and /sys: what cannot be read is empty, and what it does not say is left out."""

from __future__ import annotations

import re
from pathlib import Path


def text(path: Path | str) -> str:
    """Return what a file holds, without white space at its ends, or ""."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def sizes(path: Path | str, **keys: str) -> dict[str, int]:
    """Return the bytes that lines such as ``MemTotal:  1024 kB`` tell, under the names of ``keys``."""
    said = text(path)
    found = {name: re.search(rf"\b{key}:\s+(\d+) kB", said) for name, key in keys.items()}
    return {name: int(match[1]) * 1024 for name, match in found.items() if match}
