"""Results as plain data: their common facts, their files, and histories."""

from __future__ import annotations

import argparse
import json
import os
import platform
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from infeng_inspect.api import machine as describe

from infeng_core.api import ResourceError, UsageError, read_bytes
from infeng_core.api.kernels import Cpu, detect

SCHEMA = "infeng-quality/1"
"""Name and major version of the results' form; docs/quality.md describes it. Added keys do not change the version."""

LONG = ("kl_histogram", "worst_documents", "items", "formats", "features", "bytes_by_format")
"""Keys that a history leaves out."""

MOST_HISTORY = 256 << 20
"""Most bytes of a history; a result has some KB."""


def record(kind: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result: ``figures`` and the facts of every result. kind: quality, tasks or throughput."""
    facts: dict[str, Any] = {"schema": SCHEMA, "kind": kind, "time": datetime.now(UTC).isoformat(timespec="seconds")}
    return {**facts, **figures, "machine": machine(), "versions": versions()}


def machine(cpu: Cpu | None = None) -> dict[str, Any]:
    """Return processor, cores and system; nothing names the computer or its user."""
    facts = describe(cpu or detect())
    return {"cpu": facts["model"], **{name: facts[name] for name in ("arch", "cores", "system", "features")}}


def versions() -> dict[str, str]:
    """Return the versions of Python, NumPy and every installed plugin's distribution."""
    found = {"python": platform.python_version()}
    names = {"numpy", "tokenizers"}
    names |= {point.dist.name for point in metadata.entry_points(group="infeng.plugins") if point.dist is not None}
    for name in sorted(names):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def write(path: str | Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON; "-" is standard output. Raises ResourceError if it cannot be written."""
    made = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False, default=str) + "\n"
    text = made.encode("utf-8", "backslashreplace").decode("utf-8")  # a path need not be UTF-8
    if str(path) == "-":
        print(text, end="")
    else:
        write_text(path, text)


def write_text(path: str | Path, text: str) -> None:
    """Replace a regular file atomically, or write to another kind of file. Raises ResourceError."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8", errors="backslashreplace")
            return
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ResourceError(str(path), f"cannot be written ({error.strerror})", "choose another file") from error


def require_places(arguments: argparse.Namespace) -> None:
    """Raise UsageError if a file of --json, --report or --history cannot be written, before the measurement."""
    for name in ("json", "report", "history"):
        given = getattr(arguments, name, None)
        if given is None or (name == "json" and given == "-"):
            continue
        target = Path(given)
        folder = target.absolute().parent
        if target.is_dir():
            raise UsageError(f"--{name} {given}", "is a directory", "name a file")
        if not folder.is_dir():
            raise UsageError(f"--{name} {given}", "its folder is not there", "make it, or choose another file")
        is_replaced = target.is_file() and name != "history"  # write_text renames a new file over it
        if not os.access(folder if is_replaced or not target.exists() else target, os.W_OK):
            raise UsageError(f"--{name} {given}", "cannot be written", "check permissions, or choose another file")


def read(path: str | Path) -> dict[str, Any]:
    """Read a result that ``write`` wrote; raises UsageError for another file."""
    try:
        found = json.loads(read_bytes(Path(path), kind=UsageError, remedy="give a file that --json wrote"))
    except (ValueError, RecursionError) as error:
        raise UsageError(str(path), f"cannot be read ({error})", "give a file that --json wrote") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise UsageError(str(path), f"is no result of the form {SCHEMA}", "give a file that --json wrote")
    return found


def append(path: str | Path, result: Mapping[str, Any]) -> None:
    """Append a result to a history as a line of JSON, on a new line if the last one is incomplete.

    Raises ResourceError.
    """
    line = json.dumps(_short(result), ensure_ascii=False, allow_nan=False, default=str).encode(
        "utf-8", "backslashreplace"
    )
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            rest = memoryview((b"" if _ends_whole(handle) else b"\n") + line + b"\n")
            while rest:  # a single write unless the disk is nearly full
                rest = rest[os.write(handle, rest) :]
        finally:
            os.close(handle)
    except OSError as error:
        raise ResourceError(str(path), f"cannot be written ({error.strerror})", "choose another file") from error


def _ends_whole(handle: int) -> bool:
    """Return whether a file is empty or ends with a line end; True for other than regular files."""
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return True
    return os.pread(handle, 1, found.st_size - 1) == b"\n"


def history(path: str | Path) -> list[dict[str, Any]]:
    """Return the results of a history, the oldest first, without lines of another form. Raises UsageError."""
    lines = read_bytes(Path(path), MOST_HISTORY, UsageError, "give a file that --history wrote").split(b"\n")
    found = []
    for line in lines:
        try:
            one = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            continue  # a damaged line, or one truncated when the disk was full
        if isinstance(one, dict) and one.get("schema") == SCHEMA:
            found.append(one)
    return sorted(found, key=lambda one: str(one.get("time", "")))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _short(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _short(one) for key, one in value.items() if key not in LONG}
    return value
