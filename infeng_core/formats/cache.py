"""The user's cache of what was made on first use: who may write it, and how much stays."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from infeng_core import files
from infeng_core.errors import InfengError, ResourceError
from infeng_core.files import cache_root
from infeng_core.log import get_logger

REMEDY = "set INFENG_CACHE to a directory of your own, or see that only you can write this one"

_KEY = re.compile("[0-9a-f]{32}")
_log = get_logger(__name__)


def require_own(directory: Path) -> None:
    """Create the folders above a cached ``directory``; raise ResourceError if other users could have written there.

    Root is trusted, and so is a folder that everyone may write but only owners may clear (as /tmp is).
    """
    with contextlib.suppress(OSError):  # the later write reports the error
        for folder in reversed(_above(directory)):
            folder.mkdir(0o755, parents=True, exist_ok=True)
    held = directory.iterdir() if directory.is_dir() else ()
    for place in (*_above(directory), directory, *held):
        files.require_trusted(place, ResourceError, REMEDY)


def _above(directory: Path) -> list[Path]:
    """Return the folders above a cached directory, up to the cache's root; two for a directory outside it."""
    above = list(directory.parents)
    try:
        root = cache_root()
    except ResourceError:  # a user without a home, whose cache lies elsewhere
        return above[:2]
    return above[: above.index(root) + 1] if root in above else above[:2]


def mark_used(directory: Path) -> None:
    """Record that an entry is used now; an entry that this user may not change stays as it is."""
    with contextlib.suppress(OSError):
        os.utime(directory)


def trim(
    most: int,
    keep: Path,
    is_entry: Callable[[Path], bool],
    *,
    rest: float = 0.0,
    guard: Callable[[Path], AbstractContextManager[None]] = lambda entry: nullcontext(),
) -> list[Path]:
    """Remove the least recently used entries until the rest fit in ``most`` bytes; ``keep`` stays. Return the removed
    ones.

    is_entry: recognizes entries. rest: seconds since the last use in which an entry stays. guard: held while an entry
    is moved aside, where others may be making it. A process that has mapped an entry keeps its pages.
    """
    folders = [entry for entry in keep.parent.iterdir() if _KEY.fullmatch(entry.name) and not entry.is_symlink()]
    entries = [(one, *found) for one in folders if is_entry(one) and (found := _size_and_use(one)) is not None]
    total, gone = sum(size for _, size, _ in entries), []
    for entry, size, used in sorted(entries, key=lambda one: one[2]):
        if total <= most or used > time.time() - rest:
            break
        if entry.name != keep.name and _remove(entry, guard):
            total -= size
            gone.append(entry)
            _log.info("removed from the cache", path=str(entry), bytes=size)
    return gone


def _size_and_use(entry: Path) -> tuple[int, float] | None:
    """Return an entry's bytes and its last use in seconds since 1970; None if it has just been removed."""
    try:
        return sum(file.stat().st_size for file in entry.iterdir()), entry.stat().st_mtime
    except OSError:
        return None


def _remove(entry: Path, guard: Callable[[Path], AbstractContextManager[None]]) -> bool:
    """Remove an entry so that no reader sees half of it; return whether that succeeded."""
    aside = entry.with_name(f".{entry.name}.infeng-gone")
    try:
        with guard(entry):
            shutil.rmtree(aside, ignore_errors=True)
            entry.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    except (OSError, InfengError):
        return False
    return True
