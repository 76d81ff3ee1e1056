"""A converter: ``infeng run model.tar``, an engine-native directory in one file, which is unpacked once into the cache.

``tar -cf model.tar -C DIR .`` makes such a file of what ``infeng convert MODEL DIR`` wrote.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from infeng_convert.api import locked, replacing

from infeng_core.api import ConverterFactory, EngineConfig, ModelError, Plugins, cache_root, hookimpl, require_own
from infeng_core.api.formats import ModelConfig, Prepared, format_lookup, is_native, read_manifest


class Archive:
    """What the hook's factory makes."""

    def __init__(self, config: EngineConfig, plugins: Plugins) -> None:
        """Find weight formats in ``plugins``."""
        self._lookup = format_lookup(plugins)

    def recognizes(self, source: Path) -> bool:
        """Return whether ``source`` is called as an archive."""
        return source.suffix == ".tar" and source.is_file()

    def prepare(self, source: Path, *, progress: bool) -> Prepared:
        """Return the directory that was unpacked; one that was damaged since is unpacked again."""
        return Prepared(_unpacked(source), again=partial(_again, source))

    def outline(self, source: Path) -> tuple[ModelConfig, Mapping[str, str]]:
        """Return the model's sizes and formats as its manifest has them; raises ModelError."""
        manifest = read_manifest(_unpacked(source), self._lookup)
        return manifest.model, {name: entry.format for name, entry in manifest.tensors.items()}

    def refuse(self, source: Path) -> None:
        """Raise nothing: whatever is called .tar is recognized."""


def _place(source: Path) -> Path:
    """Return where an archive is unpacked; one that has changed since goes elsewhere."""
    stat = source.stat()
    key = repr((str(source.resolve()), stat.st_size, stat.st_mtime_ns))
    return cache_root() / "archives" / hashlib.sha256(key.encode()).hexdigest()[:32]


def _unpacked(source: Path) -> Path:
    directory = _place(source)
    require_own(directory)
    with locked(directory):
        if not is_native(directory):
            with replacing(directory) as folder:
                _unpack(source, folder)
    return directory


FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python before 3.11.4, as Debian 12 has it, checks nothing itself."""


def _stays_inside(member: tarfile.TarInfo) -> bool:
    name = Path(member.name)
    return (member.isfile() or member.isdir()) and not name.is_absolute() and ".." not in name.parts


def _unpack(source: Path, folder: Path) -> None:
    try:
        with tarfile.open(source, "r:") as archive:
            if led_out := next((member.name for member in archive if not _stays_inside(member)), None):
                raise ModelError(f"{source}", f"has {led_out!r}, which is no file of the directory", "make it again")
            archive.extractall(folder, **FILTER)
    except tarfile.TarError as error:
        raise ModelError(f"{source}", f"is no tar archive ({error})", "make it again: tar -cf FILE -C DIR .") from None
    if not is_native(folder):
        raise ModelError(f"{source}", "holds no engine-native model", "make it again: tar -cf FILE -C DIR .")


def _again(source: Path) -> Prepared:
    shutil.rmtree(_place(source), ignore_errors=True)
    return Prepared(_unpacked(source))


@hookimpl
def infeng_converters() -> dict[str, ConverterFactory]:
    """Return the converter."""
    return {"archive": Archive}
