"""Directories that are either complete or absent: a temporary name, fsync, rename, and one writer at a
time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from infeng_core.api import InfengError, ResourceError, UsageError, read_own

KEY, JOURNAL = TRACES = ("key", "journal")
"""Files in interrupted work: its key, and the list of finished entries. They are removed at the end."""
MAX_KEY = 4096

FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file got too large",
}


def require_name(destination: Path) -> None:
    """Raise UsageError for a path that cannot name a directory."""
    if not destination.name or "\0" in destination.name:
        raise UsageError(f"{str(destination)!r}", "is no name of a directory to write", "choose another destination")


@contextlib.contextmanager
def locked(destination: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of ``destination`` among all processes; ``waiting`` is called once if another one has it.

    The lock is a file beside the destination that is removed at the end; the system frees it when a process dies.
    """
    require_name(destination)
    path = destination.with_name(f".{destination.name}.lock")
    with _disk_errors(destination):
        path.parent.mkdir(parents=True, exist_ok=True)
    told = False
    while True:
        with _disk_errors(destination):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    waiting()
                told = True
                fcntl.flock(handle, fcntl.LOCK_EX)
            if not _is(path, handle):
                continue  # the previous holder removed this file: later callers lock a new one
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(handle)


def require_ours(destination: Path, what: str, written: Callable[[Path], set[str]], kind: type[InfengError]) -> None:
    """Raise ``kind`` unless ``destination`` is empty or holds exactly the files that this program wrote.

    ``written`` returns their names, or raises an InfengError for a directory that is no ``what``.
    """
    why = f"exists and is no {what}"
    try:
        found = {entry.name: entry.is_file(follow_symlinks=False) for entry in os.scandir(destination)}
        if not found:
            return
        names = written(destination)
        odd = [name for name in sorted(found.keys() | names) if name not in names or not found.get(name)]
        if not odd:
            return
        why += f" as it was written ({odd[0]!r} is {'not part of it' if odd[0] in found else 'missing'})"
    except (InfengError, OSError):
        pass
    raise kind(f"{destination}", why, "choose another destination, or remove it yourself")


@contextlib.contextmanager
def replacing(destination: Path, check: Callable[[], None] = lambda: None, key: str = "") -> Iterator[Path]:
    """Yield a new directory to fill; it becomes ``destination`` if the block succeeds and is removed if it fails.

    An older ``destination`` is replaced, unless ``check`` then raises. Call under ``locked``. Every file is on the
    disk before the rename, and files are never writable by everyone. A full disk is a ResourceError. With ``key``,
    the work that Ctrl-C or a kill leaves is kept and passed to the next call with that key.
    """
    partial, goes_on = partial_of(destination), bool(key) and interrupted(destination) == key
    old = destination.with_name(f".{destination.name}.infeng-old")
    is_kept = False
    try:
        with _disk_errors(destination):
            _restore(old, destination)
            for leftover in (old,) if goes_on else (partial, old):  # left by a killed process
                shutil.rmtree(leftover, ignore_errors=True)
            if not goes_on:
                partial.mkdir(parents=True)
                partial.chmod(partial.stat().st_mode & ~0o002)
            if key:
                (partial / KEY).write_text(key, encoding="utf-8")
            yield partial
            for file in partial.iterdir():
                file.chmod(file.stat().st_mode & ~0o002)
                _sync(file)
            for name in TRACES if key else ():
                (partial / name).unlink(missing_ok=True)
            partial.chmod(partial.stat().st_mode & ~0o002)
            _sync(partial)
            if destination.exists():
                check()
                destination.rename(old)
            partial.rename(destination)
            _sync(destination.parent)
    except KeyboardInterrupt:
        is_kept = bool(key)
        raise
    finally:
        _restore(old, destination)
        if not is_kept:
            shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def partial_of(destination: Path) -> Path:
    """Return the folder that holds unfinished work on ``destination``."""
    return destination.with_name(f".{destination.name}.infeng-partial")


def interrupted(destination: Path) -> str:
    """Return the key of interrupted work on ``destination``; "" if there is none or it belongs to another user."""
    partial = partial_of(destination)
    try:
        found = partial.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o002:
            return ""
        return read_own(partial / KEY, MAX_KEY).decode("utf-8")
    except (OSError, ResourceError, UnicodeError):
        return ""


def _restore(old: Path, destination: Path) -> None:
    """Move ``old`` back if nothing replaced it."""
    if old.exists() and not destination.exists():
        old.rename(destination)


@contextlib.contextmanager
def _disk_errors(destination: Path) -> Iterator[None]:
    try:
        yield
    except InfengError:
        raise
    except OSError as error:
        if error.errno in FULL:
            remedy = "free some space or choose another place (a conversion's cache is in $INFENG_CACHE)"
            raise ResourceError(f"{destination}", f"{FULL[error.errno]}, nothing was kept", remedy) from None
        why = f"cannot be written ({error.strerror})"
        remedy = "check the path and its permissions, or choose another place (for the cache: set INFENG_CACHE)"
        raise ResourceError(f"{destination}", why, remedy) from None


def _is(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
