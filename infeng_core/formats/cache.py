"""Where models and adapters that were converted on the fly are kept."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from infeng_core import files
from infeng_core.errors import InfengError, ResourceError
from infeng_core.files import cache_root
from infeng_core.formats.artifacts.manifest import is_native
from infeng_core.formats.atomic import locked
from infeng_core.log import get_logger

REST_SECONDS = 600
"""An entry that was used so lately may still be read by a process that starts: it stays."""

REMEDY = "set INFENG_CACHE to a directory of your own, or see that only you can write this one"

_KEY = re.compile("[0-9a-f]{32}")
_log = get_logger(__name__)


def cached_model(key: str) -> Path:
    """Return the directory in which the conversion with ``key`` is or will be."""
    return cache_root() / "models" / key


def require_own(directory: Path) -> None:
    """Make the folders above a cached ``directory``; raise ResourceError where other users could have put it there.

    Root is trusted, and so is a folder that all may write and none may clear (as /tmp is).
    """
    with contextlib.suppress(OSError):  # whoever writes says what is wrong
        for folder in reversed(_above(directory)):
            folder.mkdir(0o755, parents=True, exist_ok=True)
    held = directory.iterdir() if directory.is_dir() else ()
    for place in (*_above(directory), directory, *held):
        files.require_trusted(place, ResourceError, REMEDY)


def _above(directory: Path) -> list[Path]:
    """Return the folders above a cached one, up to the cache's root; of one that lies elsewhere, two."""
    above = list(directory.parents)
    try:
        root = cache_root()
    except ResourceError:  # a user without a home, who keeps things elsewhere
        return above[:2]
    return above[: above.index(root) + 1] if root in above else above[:2]


def mark_used(directory: Path) -> None:
    """Note that an entry is used now; one that this user may not change stays as it is."""
    with contextlib.suppress(OSError):
        os.utime(directory)


def most_bytes(setting: int | Literal["auto", "none"]) -> int:
    """Return how many bytes may be kept by ``model.cache``."""
    if setting == "none":
        return 0
    return shutil.disk_usage(cache_root()).total // 4 if setting == "auto" else setting


def trim(most: int, keep: Path, is_entry: Callable[[Path], bool] = is_native, rest: float = REST_SECONDS) -> list[Path]:
    """Remove the entries that were used longest ago until all have ``most`` bytes; ``keep`` stays. Return those gone.

    is_entry: tells what is one. rest: seconds since its last use in which one stays. A process that has mapped one
    keeps its pages.
    """
    folders = [entry for entry in keep.parent.iterdir() if _KEY.fullmatch(entry.name) and not entry.is_symlink()]
    entries = [(one, *found) for one in folders if is_entry(one) and (found := _size_and_use(one)) is not None]
    total, gone = sum(size for _, size, _ in entries), []
    for entry, size, used in sorted(entries, key=lambda one: one[2]):
        if total <= most or used > time.time() - rest:
            break
        if entry.name != keep.name and _remove(entry):
            total -= size
            gone.append(entry)
            _log.info("removed from the cache", path=str(entry), bytes=size)
    return gone


def _size_and_use(entry: Path) -> tuple[int, float] | None:
    """Return an entry's bytes and when it was used last, seconds since 1970; None for one that has just gone."""
    try:
        return sum(file.stat().st_size for file in entry.iterdir()), entry.stat().st_mtime
    except OSError:
        return None


def _remove(entry: Path) -> bool:
    """Remove an entry so that nobody sees half of it; return whether that could be done."""
    aside = entry.with_name(f".{entry.name}.infeng-gone")
    try:
        with locked(entry):
            shutil.rmtree(aside, ignore_errors=True)
            entry.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    except (OSError, InfengError):
        return False
    return True
