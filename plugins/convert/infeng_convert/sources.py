"""Finding the files of a model, and writing a source's directory into the cache once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from infeng_convert.atomic import locked, replacing
from infeng_convert.huggingface import refuse_file
from infeng_convert.interfaces.hooks import SOURCES
from infeng_convert.interfaces.sources import Source
from infeng_convert.providers import OWN, reader_of, recognizing
from infeng_core.api import cache_root, require_own
from infeng_core.api.formats import Providers, is_native, reading
from infeng_core.api.formats import find as find_path


def find(reference: str | Path, plugins: Providers = OWN) -> Path:
    """Return the local directory or file of a model reference, downloaded if necessary, as a reader opens it.

    Raises UsageError or ModelError for a file without a reader.
    """
    path = find_path(reference, plugins)
    made = path if is_native(path) else source_of(path, plugins)
    if made is None and path.is_file():
        refuse(path, plugins)
    return made or path


def source_of(path: Path, plugins: Providers) -> Path | None:
    """Return the path that a reader opens: ``path`` itself, or the directory that a plugin writes of it.

    None if there is no reader.
    """
    if (path / "config.json").exists() or recognizing(path, plugins) is not None:
        return path
    return written(path, dict(plugins.each(SOURCES)))


def refuse(path: Path, plugins: Providers) -> None:
    """Raise a UsageError or ModelError that says why the file or directory ``path`` is not read."""
    if path.is_file() and path.suffix in (".bin", ".pt", ".pth"):
        refuse_file(path)
    with reading(path):
        reader = reader_of(path, plugins)
        reader.files(path)
        reader.describe(path)


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
