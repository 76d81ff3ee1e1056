"""Models in formats that plugins read: written once, as a Hugging Face directory, into the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from infeng_core.files import cache_root
from infeng_core.formats.atomic import locked, replacing
from infeng_core.formats.cache import require_own


class Source(Protocol):
    """A reader of model files. Registered by name through the hook ``infeng_sources``."""

    def reads(self, path: Path) -> bool:
        """Return whether the file or directory at ``path`` has this format, by its name or its first bytes."""

    def write(self, path: Path, directory: Path) -> None:
        """Write config.json, safetensors files and, if there is one, tokenizer.json into the empty ``directory``.

        Raises ModelError for a file that is broken.
        """


def written(path: Path, sources: Mapping[str, Source]) -> Path | None:
    """Return the Hugging Face directory that the first matching source makes, or has made, of ``path``.

    None if no source reads it. A changed file is written again.
    """
    name = next((name for name, source in sources.items() if source.reads(path)), None)
    if name is None:
        return None
    directory = cache_root() / "sources" / _key(name, path)
    require_own(directory)
    with locked(directory):
        if not directory.is_dir():
            with replacing(directory) as folder:
                sources[name].write(path, folder)
    return directory


def _key(name: str, path: Path) -> str:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    found = [(str(file), file.stat().st_size, file.stat().st_mtime_ns, file.stat().st_ino) for file in files]
    return hashlib.sha256(repr((name, str(path.resolve()), found)).encode()).hexdigest()[:32]
