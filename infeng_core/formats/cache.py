"""Where models that were converted on the fly are kept."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from infeng_core.errors import ResourceError
from infeng_core.files import cache_root


def cached_model(key: str) -> Path:
    """Return the directory in which the conversion with ``key`` is or will be."""
    return cache_root() / "models" / key


def require_own(directory: Path) -> None:
    """Make the folders above a cached ``directory``; raise ResourceError where other users could have put it there.

    Root is trusted, and so is a folder that all may write and none may clear (as /tmp is).
    """
    with contextlib.suppress(OSError):  # whoever writes says what is wrong
        for folder in (directory.parent.parent, directory.parent):
            folder.mkdir(0o755, parents=True, exist_ok=True)
    inside = directory.iterdir() if directory.is_dir() else ()
    for place in (directory.parent.parent, directory.parent, directory, *inside):
        try:
            found = place.stat()
        except OSError:
            continue
        remedy = "set INFENG_CACHE to a directory of your own, or see that only you can write this one"
        if found.st_uid not in (os.geteuid(), 0):
            raise ResourceError(f"{place}", f"belongs to another user ({found.st_uid}): it is not trusted", remedy)
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise ResourceError(f"{place}", "may be written by every user: it is not trusted", remedy)
