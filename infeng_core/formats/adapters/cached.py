"""Adapters as they were packed before, in the user's cache: reading one takes a quarter of packing it again.

An entry is named by the files that it was made of, by the base and by how it is stored. Files count by their place,
size, number and times, once they have rested: what is being written is packed each time. An entry's checksum is
compared when it is read; one that is damaged is as good as none.
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

from infeng_core.errors import AdapterError, ResourceError
from infeng_core.files import cache_root
from infeng_core.formats.adapters.artifact import (
    FILE,
    MAJOR,
    MINOR,
    describe,
    is_artifact,
    load_artifact,
    write_artifact,
)
from infeng_core.formats.adapters.image import AdapterImage
from infeng_core.formats.adapters.packed import AdapterDtype, PackedAdapter
from infeng_core.formats.cache import mark_used, require_own, trim
from infeng_core.formats.tensors import LoadedModel
from infeng_core.log import get_logger

RULES = 2
"""Counts changes of what packing makes of the same files."""

REST_SECONDS = 2.0
"""Files that changed more lately may change again within a tick of the clock that stamps them."""

Files = Callable[[], Sequence[Path]]
"""Returns the files that an adapter is made of; none where they cannot stand for it."""

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
    """Return what ``pack`` makes of the adapter at ``path``, from the cache where it is there, else through ``pack``.

    most_bytes: of all entries; 0: none is read or kept. Raises what ``pack`` raises; the cache fails silently.
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
    """Return what names an entry; None where there are no files, or one is missing or has not rested."""
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
    made_of = [stamps, model.id, dtype, scale, RULES, MAJOR, MINOR]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:32]


def _keep(entry: Path, image: AdapterImage, model: LoadedModel, most_bytes: int) -> None:
    """Write an entry, whole or not at all; one that a power failure damages is found by its checksum."""
    if image.data.nbytes > most_bytes:
        return
    try:
        require_own(entry)
        with tempfile.TemporaryDirectory(prefix=".", dir=entry.parent) as folder:
            write_artifact(image, describe(image, model), Path(folder))
            (Path(folder) / FILE).chmod(0o600)
            with contextlib.suppress(OSError):  # another process was faster
                os.rename(folder, entry)  # noqa: PTH104
                Path(folder).mkdir()  # for its removal
        trim(most_bytes, entry, is_artifact, rest=0.0)
    except (OSError, ResourceError) as error:
        _log.info("an adapter is not kept in the cache", entry=str(entry), reason=str(error))
