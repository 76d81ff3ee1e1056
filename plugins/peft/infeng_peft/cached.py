"""Packed adapters in the user's cache: reading one takes a quarter of the time of packing it.

The key of an entry covers its source files, the base and the storage type. Files count by path, size, inode and
times, once they have been left alone for a while: a file still being written is packed each time. Each read compares
the entry's checksum; a damaged entry is ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from infeng_convert.api import mark_used, trim

from infeng_core.api import AdapterError, ResourceError, cache_root, get_logger, require_own
from infeng_core.api.adapters import ARTIFACT_FILE, ARTIFACT_VERSION, AdapterDtype, AdapterImage, load_artifact
from infeng_core.api.engines import PackedAdapter
from infeng_core.api.formats import LoadedModel, is_artifact
from infeng_peft.artifact import describe, write_artifact

RULES = 2
"""Raised whenever packing makes other bytes of the same files."""

REST_SECONDS = 2.0
"""Seconds: files that changed more recently may change again within a tick of the clock that stamps them."""

Files = Callable[[], Sequence[Path]]
"""Returns the files of an adapter; none if they cannot identify it."""

_log = get_logger(__name__)


def load_through_cache(
    path: Path,
    files: Files,
    model: LoadedModel,
    dtype: AdapterDtype,
    scale: float,
    pack: Callable[[], AdapterImage],
    most_bytes: int,
) -> PackedAdapter:
    """Return the result of ``pack`` for the adapter at ``path``, from the cache if it is there.

    most_bytes: of all entries; 0: none is read or kept. Raises the errors of ``pack``; errors of the cache are only
    logged.
    """
    key = _key(files(), model, dtype, scale) if most_bytes else None
    entry = None if key is None else _entry(key)
    if entry is not None and is_artifact(entry):
        with contextlib.suppress(AdapterError, ResourceError, OSError):
            require_own(entry)
            found = load_artifact(entry, model, dtype, 1.0)
            mark_used(entry)
            return replace(found, source=path)
        shutil.rmtree(entry, ignore_errors=True)
    image = pack()
    adapter = image.adapter(model, path)
    if entry is not None and key == _key(files(), model, dtype, scale):
        _keep(entry, image, model, most_bytes)
    return adapter


def _entry(key: str) -> Path | None:
    try:
        return cache_root() / "adapters" / key
    except ResourceError:  # a user without a home
        return None


def _key(files: Sequence[Path], model: LoadedModel, dtype: AdapterDtype, scale: float) -> str | None:
    """Return the key of an entry; None without files, or if one is missing or changed recently."""
    if not files:
        return None
    stamps: list[list[object]] = []
    try:
        for file in files:
            path = file.resolve(strict=True)
            found = path.stat()
            if time.time() - found.st_ctime < REST_SECONDS:
                return None
            stamps.append([str(path), found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns])
    except (OSError, RuntimeError):
        return None
    made_of = [stamps, model.id, dtype, scale, RULES, *ARTIFACT_VERSION]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:32]


def _keep(entry: Path, image: AdapterImage, model: LoadedModel, most_bytes: int) -> None:
    """Write an entry, completely or not at all; the checksum detects damage by a power failure."""
    if image.data.nbytes > most_bytes:
        return
    try:
        require_own(entry)
        with tempfile.TemporaryDirectory(prefix=".", dir=entry.parent) as folder:
            write_artifact(image, describe(image, model), Path(folder))
            (Path(folder) / ARTIFACT_FILE).chmod(0o600)
            with contextlib.suppress(OSError):  # another process was faster
                os.rename(folder, entry)  # noqa: PTH104
                Path(folder).mkdir()  # replaces it for the later removal
        trim(most_bytes, entry, is_artifact)
    except (OSError, ResourceError) as error:
        _log.info("an adapter is not kept in the cache", entry=str(entry), reason=str(error))
