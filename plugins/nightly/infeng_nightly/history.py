"""A history: a file with one run a line, as JSON. Damaged lines are skipped, and one program at a time writes it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infeng_core.api import ResourceError, UsageError, read_bytes
from infeng_core.api import formats as files
from infeng_nightly.figures import MOST_TEXT, Figure

SCHEMA = "infeng-nightly/1"
"""Name and major version of a run's form; docs/benchmarking.md describes it. Added keys do not change the version."""

MOST_BYTES = 256 << 20
MOST_LINE = 4 << 20
"""Most bytes of a run; one has some 10 kB."""
MOST_FIGURES = 10_000

WRITTEN = "give a file that infeng nightly --history wrote"
REMEDY = f"{WRITTEN}, or one that does not exist yet"


@dataclass(frozen=True)
class Run:
    """One run of a history."""

    time: str
    machine: Mapping[str, Any]
    figures: tuple[Figure, ...]
    judged: tuple[Mapping[str, Any], ...] = ()
    """What it said of its figures."""
    commit: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    kernels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By model."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def processor(self) -> str:
        """The processor and the cores of it, which runs have to share to be compared."""
        cores = self.machine.get("cores")
        return f"{self.machine.get('cpu', 'unknown')}, {cores} cores" if cores else str(self.machine.get("cpu"))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "schema": SCHEMA, "time": self.time, "commit": self.commit, "machine": dict(self.machine),
            "versions": dict(self.versions), "kernels": {name: list(own) for name, own in self.kernels.items()},
            "settings": dict(self.settings), "figures": [one.to_dict() for one in self.figures],
            "judged": [dict(one) for one in self.judged],
        }  # fmt: skip

    @staticmethod
    def parse(line: bytes) -> Run | None:
        """Return the run of a line, without damaged figures; None for a line that is damaged or of another form."""
        if not line or len(line) > MOST_LINE:
            return None
        try:
            data = files.parse_json(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            return None
        time, machine, figures = data.get("time"), data.get("machine"), data.get("figures")
        if not (isinstance(time, str) and isinstance(machine, Mapping) and isinstance(figures, list)):
            return None
        commit = data.get("commit")
        kernels = _mapping(data.get("kernels"))
        judged = data.get("judged")
        return Run(
            time[:MOST_TEXT],
            {str(name)[:MOST_TEXT]: value for name, value in machine.items()},
            tuple(one for one in map(Figure.parse, figures[:MOST_FIGURES]) if one is not None),
            tuple(one for one in judged if isinstance(one, Mapping)) if isinstance(judged, list) else (),
            commit[:MOST_TEXT] if isinstance(commit, str) else None,
            {name: str(value)[:MOST_TEXT] for name, value in _mapping(data.get("versions")).items()},
            {name: tuple(map(str, own)) for name, own in kernels.items() if isinstance(own, list)},
            _mapping(data.get("settings")),
        )


def _mapping(value: Any) -> dict[str, Any]:
    return {str(name)[:MOST_TEXT]: one for name, one in value.items()} if isinstance(value, Mapping) else {}


def read(path: str | Path) -> list[Run]:
    """Return the runs of a history, the oldest first. Raises UsageError for a file that is missing, no regular file,
    or too large.
    """
    return _runs(read_bytes(Path(path), MOST_BYTES, UsageError, WRITTEN))


def _runs(data: bytes) -> list[Run]:
    found = [run for run in map(Run.parse, data.split(b"\n")) if run is not None]
    return sorted(found, key=lambda run: run.time)


class History:
    """An open history that no other run writes; made by ``opened``."""

    def __init__(self, path: Path, handle: int) -> None:
        """Keep the descriptor of a locked regular file."""
        self._path, self._handle = path, handle

    def runs(self) -> list[Run]:
        """Return its runs, the oldest first. Raises UsageError if it is too large."""
        os.lseek(self._handle, 0, os.SEEK_SET)
        with os.fdopen(self._handle, "rb", closefd=False) as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UsageError(f"{self._path}", f"has more than {MOST_BYTES} bytes", "begin another history")
        return _runs(data)

    def append(self, run: Run) -> None:
        """Add a run as a line of its own, even after an incomplete one. Raises ResourceError; the file then keeps its
        former size.
        """
        line = json.dumps(run.to_dict(), ensure_ascii=True, allow_nan=False).encode() + b"\n"
        size = os.fstat(self._handle).st_size
        if len(line) > MOST_LINE or size + len(line) > MOST_BYTES:
            raise ResourceError(str(self._path), "would become too large", "begin another history")
        try:
            rest = memoryview((b"" if self._ends_whole(size) else b"\n") + line)
            while rest:  # a single write unless the disk is nearly full
                rest = rest[os.write(self._handle, rest) :]
            os.fsync(self._handle)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, size)
            why = f"cannot be written ({error.strerror})"
            raise ResourceError(str(self._path), why, "make room, or choose another file") from error

    def _ends_whole(self, size: int) -> bool:
        return not size or os.pread(self._handle, 1, size - 1) == b"\n"


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[History]:
    """Yield a history for a run, made if it is not there, locked against other runs until the block ends.

    Raises UsageError for a folder, a pipe, a device, a file that cannot be written, or one that another run has.
    """
    place = Path(path)
    with files.opened(place, UsageError, REMEDY, os.O_RDWR | os.O_APPEND | os.O_CREAT) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            why = "another run measures for it, and both would disturb each other"
            raise UsageError(f"--history {path}", why, "wait until it has ended") from None
        yield History(place, handle)
