"""The sha256 of a plugin as it is installed.

A text has one line for each file of the plugin, ``<sha256 of the file>  <name>``; its lines are sorted by bytes, and
the sha256 of the plugin is the text's. Four places name the files: the wheel's RECORD, the package (or the module) of
``python``, the plugin.yaml, and its library. An installation makes some files itself, which are left out: the folder
*.dist-info, scripts, and compiled Python.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from infeng_core.errors import PluginError
from infeng_core.files import exists, opened, read_text, reading
from infeng_core.plug.discovery import Plugin

MOST_FILES = 100_000
MOST_BYTES = 8 << 30
CHUNK = 1 << 20
REMEDY = "reinstall the plugin, or ask its author for a repair"


def fingerprint(plugin: Plugin) -> str:
    """Return the sha256 of a plugin in hexadecimal.

    Raises PluginError for a file that is missing, for what is neither a file nor a folder, for a link to a folder, and
    for more than MOST_FILES files or MOST_BYTES bytes.
    """
    found: dict[str, str] = {}  # absolute path -> name
    for name, path in _files(plugin):
        found.setdefault(os.path.abspath(path), name)  # noqa: PTH100  # links are not followed
        if len(found) > MOST_FILES:
            raise PluginError(f"plugin {plugin.name}", f"has more than {MOST_FILES} files", REMEDY)
    left = MOST_BYTES
    lines = []
    for place, name in found.items():
        digest, size = _sha256(Path(place), left)
        left -= size
        lines.append(digest.encode() + b"  " + os.fsencode(name).replace(b"\\", b"\\\\").replace(b"\n", b"\\n") + b"\n")
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest()


def _files(plugin: Plugin) -> Iterator[tuple[str, Path]]:
    """Yield the names and paths of a plugin's files, some of them twice."""
    if plugin.found.wheel is not None:
        yield from _recorded(plugin.found.wheel)
    folder = plugin.source.parent
    manifest = plugin.manifest
    if manifest is not None and manifest.python is not None:
        for place in _places(folder, manifest.python.partition(".")[0]):
            yield from _below(place) if place.is_dir() else [(place.name, place)]
    yield f"{folder.name}/{plugin.source.name}", plugin.source
    if manifest is not None and manifest.library is not None:
        yield f"{folder.name}/{manifest.library.name}", manifest.library


def _recorded(wheel: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files that the RECORD of a wheel lists in the folder of packages."""
    import csv

    record = wheel / "RECORD"
    if not record.is_file():
        return
    try:
        rows = list(csv.reader(read_text(record, kind=PluginError, remedy=REMEDY).splitlines()))
    except csv.Error as error:
        raise PluginError(str(record), str(error), REMEDY) from None
    for name in (row[0] for row in rows if row):
        is_outside = name.startswith(("/", "../")) or "/../" in name
        if name and not is_outside and not name.partition("/")[0].endswith(".dist-info") and not _is_made(name):
            yield name, wheel.parent / name


def _places(folder: Path, module: str) -> list[Path]:
    """Return the folders or the file of a top-level module, which is not imported."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.submodule_search_locations is not None:
        return [Path(place) for place in spec.submodule_search_locations]
    if spec is not None and spec.origin is not None:
        return [Path(spec.origin)]
    around = [path for place in (folder, folder.parent) for path in (place / module, place / f"{module}.py")]
    return [path for path in around if exists(path)][:1]


def _below(top: Path) -> Iterator[tuple[str, Path]]:
    with reading(top, PluginError, REMEDY):
        for folder, folders, files in os.walk(top, onerror=_raise):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in folders:
                if Path(folder, name).is_symlink():
                    why = "is a link to a folder, which a sha256 does not cover"
                    raise PluginError(str(Path(folder, name)), why, "put the files there")
            for path in (Path(folder, name) for name in files if not _is_made(name)):
                yield str(path.relative_to(top.parent)), path


def _raise(error: OSError) -> None:
    raise error


def _is_made(name: str) -> bool:
    return name.endswith(".pyc")


def _sha256(path: Path, most: int) -> tuple[str, int]:
    """Return the sha256 and the bytes of a file of at most ``most`` bytes."""
    digest, size = hashlib.sha256(), 0
    with opened(path, PluginError, REMEDY) as handle, os.fdopen(handle, "rb", closefd=False) as file:
        size = os.fstat(handle).st_size
        while size <= most and (chunk := file.read(CHUNK)):
            digest.update(chunk)
            size = max(size, file.tell())
    if size > most:
        raise PluginError(f"{path}", f"with it the plugin has more than {MOST_BYTES} bytes", REMEDY)
    return digest.hexdigest(), size
