"""The entries of the user's cache directory, and their removal.

An entry is recognized by its place, its name and its contents, and counts as ours if this user owns it. All other
files are reported in one sum and never removed. Links are not followed, neither to a kind's folder nor inside an
entry.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from infeng_convert.atomic import locked
from infeng_convert.cached import REST_SECONDS
from infeng_core.api import InfengError, ResourceError, cache_root
from infeng_core.api.adapters import ARTIFACT_FILE, read_artifact
from infeng_core.api.formats import CACHE_REMEDY, artifact_manifest, distrusted

Kind = Literal["model", "adapter", "source", "prefix", "verdict", "leftover"]
KINDS: dict[Kind, str] = {
    "model": "converted models",
    "adapter": "packed adapters",
    "source": "models that plugins read",
    "prefix": "computed prefixes",
    "verdict": "results of checking kernels",
    "leftover": "remains of interrupted work",
}
"""Kinds of entries, each with a short description."""

FOLDERS: dict[str, Kind] = {"models": "model", "adapters": "adapter", "sources": "source"}
"""Folders of the cache whose entries are directories, each named by the key of its contents."""

_KEY = re.compile("[0-9a-f]{32}")
_LEFTOVER = re.compile(r"\.(?P<key>[0-9a-f]{32})\.infeng-(?:partial|old|gone)")
_VERDICTS = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}\.jsonl")
_SEGMENT = re.compile(r"\d{10}\.segment")
_SEGMENT_MAGIC = b"infengPS"  # docs/format.md, "Saved prefixes"


@dataclass(frozen=True)
class Entry:
    """A directory or file of the cache that can be removed on its own."""

    kind: Kind
    path: Path
    nbytes: int
    used: float  # last use (for prefixes and remains: last write) in seconds since 1970
    beside: tuple[Path, ...] = ()  # files that belong to it


@dataclass(frozen=True)
class Contents:
    """All entries of a cache directory, and the bytes of all other files."""

    root: Path
    entries: tuple[Entry, ...]
    other_bytes: int
    skipped: dict[Path, str] = field(default_factory=dict)  # why a file or folder is no entry


def contents(prefixes: Iterable[Path] = ()) -> Contents:
    """Return the contents of the cache directory. prefixes: further folders of computed prefixes
    (``kv_cache.prefix_dir``).

    Raises ResourceError if the directory cannot be read or could have been filled by another user.
    """
    root = Path(os.path.realpath(cache_root()))
    skipped: dict[Path, str] = {}
    if not root.is_dir():
        return Contents(root, (), 0, skipped)
    if why := distrusted(root.stat()):
        raise ResourceError(f"{root}", f"{why}: it is not trusted", CACHE_REMEDY)
    found: dict[Path, Entry] = {}
    try:
        folders = [folder for folder in sorted(root.iterdir()) if _is_folder(folder, skipped)]
        for folder in folders:
            found |= {entry.path: entry for entry in _entries(folder, skipped)}
        for folder in (Path(os.path.realpath(path)) for path in prefixes):
            if folder.is_dir():
                found |= {entry.path: entry for entry in _segments(folder)}
    except OSError as error:
        raise ResourceError(f"{root}", f"cannot be read ({error.strerror})", "check its permissions") from None
    inside = sum(entry.nbytes for entry in found.values() if entry.path.is_relative_to(root))
    return Contents(root, tuple(found.values()), max(0, _bytes(root) - inside), skipped)


def chosen(
    entries: Iterable[Entry], *, older: float | None = None, most: int | None = None, now: float | None = None
) -> list[Entry]:
    """Return the entries to remove, the least recently used first.

    older: seconds since the last use from which an entry is removed. most: bytes that the remaining entries may take.
    An entry that was used within the last 10 minutes stays, because a starting process may be reading it.
    """
    now = time.time() if now is None else now
    entries = sorted(entries, key=lambda entry: entry.used)
    total, gone = sum(entry.nbytes for entry in entries), []
    for entry in entries:
        age = now - entry.used
        is_old, is_too_much = older is not None and age >= older, most is not None and total > most
        if age >= REST_SECONDS and (is_old or is_too_much):
            gone.append(entry)
            total -= entry.nbytes
    return gone


def remove(entry: Entry) -> str:
    """Remove an entry; return why it stays, or "" once it is gone. Processes that have mapped it keep its pages."""
    try:
        if entry.kind in ("verdict", "prefix"):
            return _remove_file(entry)
        leftover = _LEFTOVER.fullmatch(entry.path.name)
        with locked(entry.path.with_name(leftover["key"]) if leftover else entry.path, _in_use):
            if not _is_own_folder(entry.path):
                return "it has changed meanwhile"
            aside = entry.path.with_name(f".{entry.path.name.strip('.')[:32]}.infeng-gone")
            if aside != entry.path:
                shutil.rmtree(aside, ignore_errors=True)
                entry.path.rename(aside)
        shutil.rmtree(aside)
    except (OSError, InfengError) as error:
        return str(error)
    return ""


def _in_use() -> None:
    raise ResourceError("the entry", "another process works on it", "try again later")


def _remove_file(entry: Entry) -> str:
    handle = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if why := distrusted(os.fstat(handle)):
            return why
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an engine that writes a segment holds its lock
        for path in (*entry.beside, entry.path):
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return "another process writes it"
    finally:
        os.close(handle)
    return ""


def _is_folder(path: Path, skipped: dict[Path, str]) -> bool:
    """Return whether a folder may be searched; for a link or another user's folder, record why not."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        skipped[path] = "is a link, which is not followed"
    elif stat.S_ISDIR(found.st_mode) and (why := distrusted(found)):
        skipped[path] = why
    return stat.S_ISDIR(found.st_mode) and path not in skipped


def _is_own_folder(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not distrusted(found)


def _entries(folder: Path, skipped: dict[Path, str]) -> Iterator[Entry]:
    if folder.name == "verdicts":
        yield from _verdicts(folder)
    elif (kind := FOLDERS.get(folder.name)) is not None:
        for path in sorted(folder.iterdir()):
            is_leftover = _LEFTOVER.fullmatch(path.name) is not None
            if not (is_leftover or _KEY.fullmatch(path.name)) or not _is_folder(path, skipped):
                continue
            if not _is_own_folder(path):
                skipped[path] = "belongs to another user"
            elif is_leftover:
                yield Entry("leftover", path, _bytes(path), path.lstat().st_mtime)
            elif why := _foreign(path, _FILES[kind]):
                skipped[path] = why
            else:
                yield Entry(kind, path, _bytes(path), path.lstat().st_mtime)
    else:
        yield from _segments(folder)


def _verdicts(folder: Path) -> Iterator[Entry]:
    for path in sorted(folder.iterdir()):
        if _VERDICTS.fullmatch(path.name) and (found := _own_file(path)) is not None:
            yield Entry("verdict", path, found.st_size, found.st_mtime)


def _segments(folder: Path) -> Iterator[Entry]:
    """Yield the segments of computed prefixes in a folder, each with its index file."""
    for path in sorted(folder.iterdir()):
        if not _SEGMENT.fullmatch(path.name) or (found := _own_file(path)) is None or not _is_segment(path):
            continue
        index = path.with_suffix(".index")
        indexed = _own_file(index)
        nbytes = found.st_size + (0 if indexed is None else indexed.st_size)
        yield Entry("prefix", path, nbytes, found.st_mtime, () if indexed is None else (index,))


def _is_segment(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.pread(handle, len(_SEGMENT_MAGIC), 0) == _SEGMENT_MAGIC
    finally:
        os.close(handle)


def _own_file(path: Path) -> os.stat_result | None:
    """Return the status of a regular file of this user, None for anything else."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not distrusted(found):
            return found
    return None


def _adapter_files(directory: Path) -> set[str]:
    read_artifact(directory)
    return {ARTIFACT_FILE}


def _source_files(directory: Path) -> set[str]:
    """Return the files of a Hugging Face directory as a reader writes it: all files, if config.json is among them."""
    names = {entry.name for entry in os.scandir(directory)}
    return names if "config.json" in names else {"config.json"}


_FILES: dict[Kind, Callable[[Path], set[str]]] = {
    "model": artifact_manifest.written_files,
    "adapter": _adapter_files,
    "source": _source_files,
}
"""By kind: the function that returns the file names of an entry, or raises an InfengError if it is no such entry."""


def _foreign(directory: Path, written: Callable[[Path], set[str]]) -> str:
    """Return why a directory is not an unchanged entry, or "" if it is one."""
    try:
        names = written(directory)
        with os.scandir(directory) as found:
            here = {entry.name: entry.is_file(follow_symlinks=False) for entry in found}
    except InfengError as error:
        return f"is not recognized ({error.why})"
    odd = sorted(name for name in here.keys() | names if name not in names or not here.get(name))
    return f"is not as it was written ({odd[0]!r})" if odd else ""


def _bytes(path: Path) -> int:
    """Return the bytes of all files below a folder; links count nothing and are not followed."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(folder, name))  # noqa: PTH118
                total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total
