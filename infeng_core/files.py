"""Reading of untrusted files: no file can hang a reader, exhaust memory or overflow a stack.

Only regular files are read, up to a limit; JSON and YAML are nested up to a limit. Errors have the class that the
caller names, with the file, the reason and the remedy.

Two rules limit which files are used. Files trusted as our own (caches, verdicts, journals) must belong to this user
or to root, must not be links, and neither they nor their folders may be writable by every user: ``own_file``. Files
that a model's folder names, and that are passed on or run, must lie in that folder, or in the blobs of the hub's
cache if the folder is a snapshot there: ``model_file``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from infeng_core.errors import InfengError, ModelError, ResourceError

MAX_BYTES = 32 << 20  # the index of a very large model has 15 MB
MAX_DEPTH = 64  # of JSON; a config.json has 4
AGAIN = "download the file again"
CACHE_REMEDY = "set INFENG_CACHE to a directory of your own, or see that only you can write this one"
REMOVE = "remove it, or set INFENG_CACHE to a directory of your own that no other user may write"

SNAPSHOTS = "snapshots"
"""The folder of a hub's cache that holds a repository's revisions, as links into its blobs."""

Kind = type[InfengError]

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # an unterminated string matches to the end: linear time
_NO_BRACKET = re.compile(rb"[^][}{]+")
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def cache_root() -> Path:
    """Return ``$INFENG_CACHE``, else ``$XDG_CACHE_HOME/infeng``, else ``~/.cache/infeng``."""
    for variable, sub in (("INFENG_CACHE", ""), ("XDG_CACHE_HOME", "infeng")):
        if os.environ.get(variable):
            return Path(os.environ[variable]) / sub
    try:
        return Path.home() / ".cache" / "infeng"
    except RuntimeError:
        raise ResourceError("the cache", "this user has no home directory", "set INFENG_CACHE") from None


def require_own(directory: Path) -> None:
    """Create the folders above a cached ``directory``; raise ResourceError if other users could have written there.

    Root is trusted, and so is a folder that everyone may write but only owners may clear (as /tmp is).
    """
    with contextlib.suppress(OSError):  # the later write reports the error
        for folder in reversed(_above(directory)):
            folder.mkdir(0o755, parents=True, exist_ok=True)
    held = directory.iterdir() if directory.is_dir() else ()
    for place in (*_above(directory), directory, *held):
        require_trusted(place, ResourceError, CACHE_REMEDY)


def _above(directory: Path) -> list[Path]:
    """Return the folders above a cached directory, up to the cache's root; two for a directory outside it."""
    above = list(directory.parents)
    try:
        root = cache_root()
    except ResourceError:  # a user without a home, whose cache lies elsewhere
        return above[:2]
    return above[: above.index(root) + 1] if root in above else above[:2]


def exists(path: Path | str) -> bool:
    """Return whether a file exists; False for a name that is too long, has a NUL or lies in an unreadable folder."""
    return os.path.exists(path)  # noqa: PTH110  # Path.exists raises the system's error for such names


@contextlib.contextmanager
def reading(path: Path, kind: Kind = ModelError, remedy: str = AGAIN) -> Iterator[None]:
    """Turn system errors in the block into ``kind``, naming the file, or ``path`` if they name none."""
    try:
        yield
    except FileNotFoundError as error:
        raise kind(f"{error.filename or path}", "no such file", remedy) from None
    except OSError as error:
        why = f"cannot be read ({error.strerror or error})"
        raise kind(f"{error.filename or path}", why, "check the file and its permissions") from None


@contextlib.contextmanager
def opened(path: Path, kind: Kind = ModelError, remedy: str = AGAIN, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Yield a descriptor of a regular file for reading; raises ``kind`` at once for a pipe, a device or a directory.

    flags: of ``open``, for more than reading.
    """
    with reading(path, kind, remedy):
        try:
            handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o644)
        except ValueError as error:  # a NUL, or characters that no file name can have
            raise kind(f"{str(path)[:200]!r}", f"is no usable path ({error})", remedy) from None
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise kind(f"{path}", "cannot be read (it is no regular file)", "check the file and its permissions")
            yield handle
        finally:
            os.close(handle)


@contextlib.contextmanager
def own_file(
    path: Path, kind: Kind = ResourceError, remedy: str = REMOVE, flags: int = os.O_RDONLY, folders: int = 1
) -> Iterator[int]:
    """Yield a descriptor of a regular file that is trusted as our own: see ``distrusted``; raises ``kind``.

    folders: how many of the folders above it are checked too.
    """
    for folder in path.parents[:folders]:
        require_trusted(folder, kind, remedy)
    with opened(path, kind, remedy, flags | os.O_NOFOLLOW) as handle:
        if why := distrusted(os.fstat(handle)):
            raise kind(f"{path}", f"{why}: it is not trusted", remedy)
        yield handle


def read_own(
    path: Path, limit: int = MAX_BYTES, kind: Kind = ResourceError, remedy: str = REMOVE, folders: int = 1
) -> bytes:
    """Return the contents of a file, opened by ``own_file``, of ``limit`` bytes at most; raises ``kind``."""
    with own_file(path, kind, remedy, folders=folders) as handle:
        return bytes_of(handle, path, limit, kind, remedy)


def require_trusted(folder: Path, kind: Kind = ResourceError, remedy: str = REMOVE) -> None:
    """Raise ``kind`` for a folder, or a link to it, that another user could have made; a missing folder is fine.

    Links of our own are followed. A folder that everyone may write but only owners may clear (as /tmp is) is trusted.
    """
    for found in (os.lstat, os.stat):
        try:
            why = distrusted(found(folder))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise kind(f"{str(folder)[:200]}", f"cannot be looked at ({error})", remedy) from None
        if why:
            raise kind(f"{folder}", f"{why}: it is not trusted", remedy)


def distrusted(found: os.stat_result) -> str:
    """Return why another user could have written a file or folder, "" if none could. Root is trusted."""
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user ({found.st_uid})"
    mode = found.st_mode
    is_kept = stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX)  # a link has no permissions of its own
    return "may be written by every user" if mode & stat.S_IWOTH and not is_kept else ""


def model_file(directory: Path, name: str, kind: Kind = ModelError) -> Path:
    """Return the path of the file ``name`` of a model's folder; raises ``kind`` for links that lead out of it.

    Links into the blobs of the hub's cache are allowed if the folder is a snapshot there. The file need not exist.
    """
    path = directory / name
    try:
        home, real = directory.resolve(), path.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop, or an invalid file name
        raise kind(f"{path}", "cannot be read (its links lead nowhere)", AGAIN) from None
    blobs = home.parent.parent / "blobs" if home.parent.name == SNAPSHOTS else None
    if not real.is_relative_to(home) and real.parent != blobs:
        why = "is a link that leads out of the directory"  # its target stays secret
        raise kind(f"{path}", why, "put the file itself there, or remove the link")
    return path


def read_bytes(path: Path, limit: int = MAX_BYTES, kind: Kind = ModelError, remedy: str = AGAIN) -> bytes:
    """Return the contents of a regular file of ``limit`` bytes at most; raises ``kind``."""
    with opened(path, kind, remedy) as handle:
        return bytes_of(handle, path, limit, kind, remedy)


def bytes_of(handle: int, path: Path, limit: int, kind: Kind, remedy: str) -> bytes:
    """Return the contents of an open file of ``limit`` bytes at most; raises ``kind``."""
    size = os.fstat(handle).st_size
    with os.fdopen(handle, "rb", closefd=False) as file:
        data = file.read(limit + 1) if size <= limit else b""
    if size > limit or len(data) > limit:
        raise kind(f"{path}", f"has more than {limit} bytes", remedy)
    return data


def read_text(path: Path, limit: int = MAX_BYTES, kind: Kind = ModelError, remedy: str = AGAIN) -> str:
    """Return the UTF-8 text of a file, read by ``read_bytes``."""
    try:
        return read_bytes(path, limit, kind, remedy).decode("utf-8")
    except UnicodeDecodeError as error:
        raise kind(f"{path}", f"not UTF-8 text (byte {error.start})", "save the file as UTF-8") from None


def read_into(handle: int, view: memoryview, begin: int, path: Path, kind: Kind = ModelError) -> None:
    """Fill ``view`` from byte ``begin`` of an open file on; raises ``kind`` if the file ends too early."""
    done = 0
    with reading(path, kind):
        while done < len(view):
            got = os.preadv(handle, [view[done : done + (1 << 26)]], begin + done)
            if got == 0:
                remedy = "it is damaged, or was cut while it was read: download or write it again"
                raise kind(f"{path}", f"ends {len(view) - done} bytes too early", remedy)
            done += got


def read_json(path: Path, remedy: str = AGAIN, limit: int = MAX_BYTES, kind: Kind = ModelError) -> Any:
    """Return the JSON document in ``path``; raises ``kind`` naming file, place and reason. See ``parse_json``."""
    data = read_bytes(path, limit, kind, remedy)
    try:
        return parse_json(data)
    except ValueError as error:
        raise kind(f"{path}", f"not valid JSON ({error})", remedy) from None


def parse_json(data: bytes) -> Any:
    """Return the document in UTF-8 ``data``; raises ValueError with the reason for any invalid input.

    It is stricter than ``json.loads``: a key given twice, the constants NaN and Infinity, half a surrogate pair and
    nesting beyond ``MAX_DEPTH`` are errors.
    """
    try:
        text = data.decode("utf-8")
        brackets = _NO_BRACKET.sub(b"", _STRING.sub(b"", data))
        if max(itertools.accumulate(map(_STEP.__getitem__, brackets)), default=0) > MAX_DEPTH:
            raise ValueError("nested too deeply")
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        if b"\\ud" in data or b"\\uD" in data:
            json.dumps(document, ensure_ascii=False).encode("utf-8")
        return document
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    except UnicodeEncodeError:
        raise ValueError("a text holds half of a surrogate pair") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice[:80]!r} is given twice")
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
