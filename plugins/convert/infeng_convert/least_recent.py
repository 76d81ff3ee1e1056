"""Removal of the least recently used entries of a cache."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from infeng_core.api import InfengError, get_logger

_KEY = re.compile("[0-9a-f]{32}")
_log = get_logger(__name__)


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
