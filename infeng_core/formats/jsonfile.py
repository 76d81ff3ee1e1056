"""JSON files of a model directory, read strictly."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, NoReturn

from infeng_core.errors import ModelError

MAX_BYTES = 64 << 20  # an index of the largest models has a few megabytes


def read_json(path: Path, remedy: str = "download the file again", limit: int = MAX_BYTES) -> Any:
    """Return the document in ``path``, of ``limit`` bytes at most; raises ModelError naming file, place and reason.

    Stricter than ``json.loads``: a key given twice and the constants NaN and Infinity are errors.
    """
    try:
        require_regular(path)
        with path.open("rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise ModelError(f"{path}", f"has more than {limit} bytes", remedy)
    except FileNotFoundError:
        raise ModelError(f"{path}", "no such file", remedy) from None
    except OSError as error:
        raise ModelError(f"{path}", f"cannot be read ({error.strerror})", "check its permissions") from None
    try:
        return parse_json(data)
    except ValueError as error:
        raise ModelError(f"{path}", f"not valid JSON ({error})", remedy) from None


def require_regular(path: Path) -> None:
    """Raise ModelError for a pipe, a device or a directory, which could be read without end; OSError as ``stat``."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ModelError(f"{path}", "cannot be read (it is no regular file)", "check the file and its permissions")


def parse_json(data: bytes) -> Any:
    """Return the document in UTF-8 ``data``; raises ValueError with the reason, whatever is wrong."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice[:80]!r} is given twice")
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
