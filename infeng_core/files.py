"""Files of strangers: nothing that one is or holds can hang a reader, exhaust memory or overflow a stack.

Only regular files are read, up to a limit; JSON and YAML are nested up to a limit. What is wrong is an error of the
class that the caller names, with the file, the reason and the remedy.
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

MAX_BYTES = 32 << 20  # an index of the largest models has 15 MB
MAX_DEPTH = 64  # of JSON; a config.json has 4
AGAIN = "download the file again"

Kind = type[InfengError]

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # one without an end reaches to the end: linear
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


@contextlib.contextmanager
def reading(path: Path, kind: Kind = ModelError, remedy: str = AGAIN) -> Iterator[None]:
    """Turn what the system refuses in the block into ``kind``, naming the file, or ``path`` where it names none."""
    try:
        yield
    except FileNotFoundError as error:
        raise kind(f"{error.filename or path}", "no such file", remedy) from None
    except OSError as error:
        why = f"cannot be read ({error.strerror or error})"
        raise kind(f"{error.filename or path}", why, "check the file and its permissions") from None


@contextlib.contextmanager
def opened(path: Path, kind: Kind = ModelError, remedy: str = AGAIN) -> Iterator[int]:
    """Give a descriptor of a regular file for reading; a pipe, a device or a directory is a ``kind``, at once."""
    with reading(path, kind, remedy):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except ValueError as error:  # a NUL, or what no file name can hold
            raise kind(f"{str(path)[:200]!r}", f"is no usable path ({error})", remedy) from None
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise kind(f"{path}", "cannot be read (it is no regular file)", "check the file and its permissions")
            yield handle
        finally:
            os.close(handle)


def read_bytes(path: Path, limit: int = MAX_BYTES, kind: Kind = ModelError, remedy: str = AGAIN) -> bytes:
    """Return the contents of a regular file of ``limit`` bytes at most; raises ``kind``."""
    with opened(path, kind, remedy) as handle:
        return bytes_of(handle, path, limit, kind, remedy)


def bytes_of(handle: int, path: Path, limit: int, kind: Kind, remedy: str) -> bytes:
    """Do the same with an open file."""
    size = os.fstat(handle).st_size
    with os.fdopen(handle, "rb", closefd=False) as file:
        data = file.read(limit + 1) if size <= limit else b""
    if size > limit or len(data) > limit:
        raise kind(f"{path}", f"has more than {limit} bytes", remedy)
    return data


def read_text(path: Path, limit: int = MAX_BYTES, kind: Kind = ModelError, remedy: str = AGAIN) -> str:
    """Return the UTF-8 text of a file as ``read_bytes`` reads it."""
    try:
        return read_bytes(path, limit, kind, remedy).decode("utf-8")
    except UnicodeDecodeError as error:
        raise kind(f"{path}", f"not UTF-8 text (byte {error.start})", "save the file as UTF-8") from None


def read_into(handle: int, view: memoryview, begin: int, path: Path, kind: Kind = ModelError) -> None:
    """Fill ``view`` from byte ``begin`` of an open file on; raises ``kind`` where the file ends too early."""
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
    """Return the document in UTF-8 ``data``; raises ValueError with the reason, whatever is wrong.

    Stricter than ``json.loads``: a key given twice, the constants NaN and Infinity, half a surrogate pair and nesting
    beyond ``MAX_DEPTH`` are errors.
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
