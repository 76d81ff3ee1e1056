"""Results as plain data: the facts of every result, and its files."""

from __future__ import annotations

import argparse
import csv
import errno
import io
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from infeng_bench.reports import machine
from infeng_core.api import ResourceError, UsageError, read_json
from infeng_core.api.engines import BoundOp

OURS = "infeng"  # this engine's name
SCHEMA = "infeng-bench/1"
"""Name and major version of the results' form; ``schema.json`` describes it. Added keys do not change the version."""

READER_SECONDS = 5.0  # that a pipe waits for a reader
OUTPUTS = ("json", "csv", "metrics_out", "fit", "report", "output")  # options that name files to write
LISTS = ("measurements",)  # keys of lists of objects, each a line of the CSV


def record(kind: str, figures: Mapping[str, Any], **context: Any) -> dict[str, Any]:
    """Return a result: ``figures`` and the facts of every result.

    kind: the verb. context: further facts, such as ``work=str(work), model=..., format=..., threads=2, seed=0,
    kernels=[...]``; None is left out. Raises ValueError if a figure has the name of a fact.
    """
    facts: dict[str, Any] = {"schema": SCHEMA, "kind": kind, "time": datetime.now(UTC).isoformat(timespec="seconds")}
    facts |= {name: value for name, value in context.items() if value is not None}
    facts.setdefault("kernels", [])
    facts |= {"machine": machine.machine(), "features": machine.features(), "versions": machine.versions()}
    if clash := facts.keys() & figures.keys():
        raise ValueError(f"figures cannot be called {', '.join(sorted(clash))}")
    return {**facts, **figures}


def kernels(bound: Iterable[BoundOp]) -> list[dict[str, Any]]:
    """Return an engine's bound kernels in the form of results."""
    return [
        {"op": op.op, "what": op.detail, "rows": list(op.rows), "kernel": f"{op.library}/{op.kernel}"} for op in bound
    ]


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of every result."""
    text = resources.files("infeng_bench").joinpath("schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def write(path: str | Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON; "-" is standard output. Raises ResourceError if the file cannot be written."""
    write_text(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def write_csv(path: str | Path, result: Mapping[str, Any]) -> None:
    """Write a result as a table, as ``as_csv`` makes it; "-" is standard output. Raises ResourceError."""
    write_text(path, as_csv(result))


def read(path: str | Path) -> dict[str, Any]:
    """Read a result that ``write`` wrote; raises UsageError for another file."""
    data = read_json(Path(path), "give a file written by infeng bench ... --json", kind=UsageError)
    found = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(found, str) or found.partition("/")[0] != SCHEMA.partition("/")[0]:
        raise UsageError(str(path), "is not a result of infeng bench", "give a file written by infeng bench ... --json")
    if found != SCHEMA:
        raise UsageError(str(path), f"has the form {found}, this version reads {SCHEMA}", "measure again")
    result: dict[str, Any] = data
    return result


def require_places(arguments: argparse.Namespace) -> None:
    """Raise UsageError if a file of the options OUTPUTS cannot be written, before the measurement."""
    for option in OUTPUTS:
        given = getattr(arguments, option, None)
        if not isinstance(given, str) or given == "-":  # absent, or a flag of that name
            continue
        target, what = Path(given), f"--{option.replace('_', '-')} {given}"
        folder = target.absolute().parent
        if target.is_dir():
            raise UsageError(what, "is a directory", "name a file")
        if not folder.is_dir():
            raise UsageError(what, "its folder is not there", "make it, or choose another file")
        is_replaced = target.is_file() or not target.exists()  # write_text renames a new file over it
        if not os.access(folder if is_replaced else target, os.W_OK):
            raise UsageError(what, "cannot be written", "check permissions, or choose another file")


def as_csv(result: Mapping[str, Any]) -> str:
    """Return a table with one line per measurement (one line if the result is a single figure), facts repeated.

    Nested objects become columns with dotted names; other lists are left out.
    """
    facts = {name: value for name, value in result.items() if name not in (*LISTS, "features", "versions", "kernels")}
    lines: Sequence[Mapping[str, Any]] = next((result[name] for name in LISTS if name in result), [{}])
    table = [dict(flat({**facts, **line})) for line in lines]
    columns = list(dict.fromkeys(name for row in table for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return out.getvalue()


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the scalars in nested objects with dotted names."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif not isinstance(value, (list, tuple)):
            yield prefix + name, value


def write_text(path: str | Path, text: str) -> None:
    """Replace a file atomically, or write to a device or pipe; "-" is standard output. Raises ResourceError."""
    if str(path) == "-":
        print(text, end="")
        return
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        if target.exists() and not target.is_file():  # a device or a pipe
            _write_to(target, text)
            return
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ResourceError(str(path), f"cannot be written ({error.strerror})", "choose another file") from error


def _write_to(target: Path, text: str) -> None:
    """Write to a device or a pipe; raises OSError (ENXIO) if a pipe has no reader for READER_SECONDS."""
    end = time.monotonic() + READER_SECONDS
    while True:
        try:
            handle = os.open(target, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > end:
                raise
        time.sleep(0.05)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


def measurements(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the measurements of a result; a result without a list is the only one."""
    listed: list[Mapping[str, Any]] | None = result.get("measurements")
    return [result] if listed is None else listed
