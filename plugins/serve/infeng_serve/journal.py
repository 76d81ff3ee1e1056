"""Calls that were accepted, so that they can be answered again: the same request and seed give the same bytes.

An entry is a line ``CRC-32 in hex, a space, JSON``, written and handed to the system before the answer begins. So what
was accepted outlives the process; a line that a kill cut off is one that no client has heard of. Each process begins a
file of its own and removes what is older, or more, than may be kept. Without a directory entries live in memory.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from infeng_core.api import UsageError, get_logger
from infeng_serve.basis import Basis, changes, digest_of

FILES = 4
"""Files that the most bytes are spread over: the oldest goes as a whole."""

_log = get_logger(__name__)


class Entry(msgspec.Struct, frozen=True):
    """One accepted call."""

    id: str
    """Of the call; the response and its frames are named by it."""
    path: str
    """The route that was called."""
    tenant: str
    created: int
    """Seconds since 1970, as the response says."""
    body: bytes
    """What was asked, as it came."""
    seeds: tuple[int, ...]
    """Of each choice, given or drawn."""
    basis: str = ""
    """Digest of what the answer's bytes depend on; ``Journal.add`` sets it."""
    adapters: tuple[tuple[str, str, str], ...] = ()
    """(name, where it was loaded from, content id or "" where nothing was answered yet) of those that answer."""
    key: str = ""
    """The client's Idempotency-Key."""

    @property
    def size(self) -> int:
        """Bytes that it counts as."""
        return len(self.body) + 512

    @property
    def is_open(self) -> bool:
        """Whether the contents of an adapter were not known yet."""
        return not all(id for _, _, id in self.adapters)


class Head(msgspec.Struct, frozen=True):
    """The first line of a file."""

    basis: dict[str, str]
    """What the bytes of the answers depend on."""


class Journal:
    """What was accepted lately. Several threads may use it."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        keep: float = 3600.0,
        most_bytes: int = 256_000_000,
        syncs: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keep entries for ``keep`` seconds and ``most_bytes``, with a directory beyond this process: see ``read``.

        syncs: whether an entry is on the medium, not only with the system, before its answer begins.

        Raises UsageError for a directory that cannot be used or that another server uses.
        """
        self._keep, self._most_bytes, self._syncs, self._clock = keep, most_bytes, syncs, clock
        self._entries: OrderedDict[tuple[str, str], Entry] = OrderedDict()  # by tenant and id, the oldest first
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}  # tenant and Idempotency-Key -> tenant and id
        self._bytes = 0
        self._guard = threading.Lock()
        self._basis: Basis = {}
        self._digest = ""
        self._files = None if directory is None else _Files(directory, most_bytes // FILES)

    def read(self) -> int:
        """Take what earlier processes wrote, before the first ``add``; return how many entries those are.

        A full journal takes some seconds. Raises OSError for a file that cannot be read.
        """
        if self._files is None:
            return 0
        count = 0
        for entry in self._files.read(self._oldest):
            with self._guard:
                self._put(entry)
            count += 1
        return count

    def begin(self, basis: Basis) -> int:
        """Say what this process's answers depend on, before the first ``add``.

        Returns how many of the calls that were read it would answer with other bytes.
        """
        with self._guard:
            self._basis, self._digest = basis, digest_of(basis)
            if self._files is not None:
                self._files.bases[self._digest] = basis
            return sum(entry.basis != self._digest for entry in self._entries.values())

    def changes(self, entry: Entry) -> dict[str, str]:
        """Return what is not as it was when a call was accepted, a phrase for each: its answer could be another."""
        if entry.basis == self._digest:
            return {}
        before = {} if self._files is None else self._files.bases.get(entry.basis, {})
        return changes(before, self._basis)

    @property
    def is_kept(self) -> bool:
        """Whether entries outlive the process, so that every answer may be asked for again."""
        return self._files is not None

    def add(self, entry: Entry) -> None:
        """Keep a call, in the place of one with its id; it is written when this returns.

        Raises OSError where the disk refuses.
        """
        entry = msgspec.structs.replace(entry, basis=self._digest)
        with self._guard:
            if self._files is not None:
                self._files.append(entry, self._most_bytes, syncs=self._syncs)
            self._put(entry)

    def find(self, tenant: str, id: str) -> Entry | None:
        """Return the latest call of a tenant with this id, if it is still kept."""
        with self._guard:
            self._expire()
            return self._entries.get((tenant, id))

    def repeated(self, tenant: str, key: str) -> Entry | None:
        """Return the call of a tenant that had this Idempotency-Key, if it is still kept."""
        with self._guard:
            self._expire()
            return self._entries.get(self._keys.get((tenant, key), ("", "")))

    def close(self) -> None:
        """Let another server use the directory."""
        if self._files is not None:
            self._files.close()

    @property
    def _oldest(self) -> float:
        return self._clock() - self._keep

    def _put(self, entry: Entry) -> None:
        place = (entry.tenant, entry.id)
        self._drop(place)
        self._entries[place] = entry
        self._bytes += entry.size
        if entry.key:
            self._keys[entry.tenant, entry.key] = place
        self._expire()

    def _expire(self) -> None:
        """Let go of what is too old or too much, but for the latest."""
        oldest = self._oldest
        while len(self._entries) > 1:
            place, entry = next(iter(self._entries.items()))
            if self._bytes <= self._most_bytes and entry.created >= oldest:
                return
            self._drop(place)

    def _drop(self, place: tuple[str, str]) -> None:
        entry = self._entries.pop(place, None)
        if entry is not None:
            self._bytes -= entry.size
            if self._keys.get((entry.tenant, entry.key)) == place:
                del self._keys[entry.tenant, entry.key]


class _Files:
    """The files of a directory that one server at a time uses."""

    def __init__(self, directory: Path, full: int) -> None:
        """Take the directory; a file with more than ``full`` bytes is followed by another."""
        self._directory = directory
        self._full = full
        self.bases: dict[str, Basis] = {}
        """What answers of all files depend on, by their digests."""
        try:
            directory.mkdir(0o700, parents=True, exist_ok=True)
            self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UsageError(f"journal {directory}", error.strerror or str(error), "choose another directory") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise UsageError(f"journal {directory}", "another server writes it", "give each its own") from None
        self._handle = -1
        self._size = 0

    def read(self, oldest: float) -> Iterator[Entry]:
        """Give the entries of earlier processes in their order; files without a younger one than ``oldest`` go."""
        for path in self._paths():
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)
                continue
            broken = 0
            with path.open("rb") as file:
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it was cut off
                    found = _read(line[:-1])
                    if found is None:
                        broken += 1
                    elif isinstance(found, Head):
                        self.bases[digest_of(found.basis)] = found.basis
                    elif found.created >= oldest:
                        yield found
            if broken:
                _log.warning("lines of the journal are damaged and not used", path=str(path), lines=broken)

    def append(self, entry: Entry, most_bytes: int, *, syncs: bool) -> None:
        """Write an entry behind the others."""
        line = _line(entry)
        head = _line(Head(dict(self.bases[entry.basis]))) if entry.basis else b""
        if self._handle < 0 or self._size + len(line) > self._full:
            self._begin(most_bytes - len(head) - len(line))
        if not self._size:
            self._write(head)
        self._write(line)
        if syncs:
            os.fdatasync(self._handle)

    def _write(self, line: bytes) -> None:
        """Write a line as a whole or not at all."""
        done = 0
        try:
            while done < len(line):
                done += os.write(self._handle, line[done:])
        except OSError:
            os.ftruncate(self._handle, self._size)
            raise
        self._size += done

    def close(self) -> None:
        """Give the directory back."""
        if self._handle >= 0:
            os.close(self._handle)
        os.close(self._lock)

    def _paths(self) -> list[Path]:
        return sorted(self._directory.glob("[0-9]*.journal"))

    def _begin(self, most_bytes: int) -> None:
        """Begin another file, and remove the oldest ones for it."""
        paths = self._paths()
        total = sum(path.stat().st_size for path in paths)
        for path in paths:
            if total + self._full <= most_bytes:
                break
            total -= path.stat().st_size
            path.unlink()
        number = int(paths[-1].stem) + 1 if paths else 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        handle = os.open(self._directory / f"{number:010}.journal", flags, 0o600)
        if self._handle >= 0:
            os.close(self._handle)
        self._handle, self._size = handle, 0


_ENTRY, _HEAD = msgspec.json.Decoder(Entry), msgspec.json.Decoder(Head)


def _line(content: Entry | Head) -> bytes:
    data = msgspec.json.encode(content)
    return b"%08x %s\n" % (zlib.crc32(data), data)


def _read(line: bytes) -> Entry | Head | None:
    """Return what a line holds; None for a damaged one."""
    checksum, _, data = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(data):
            return None
        return (_HEAD if data.startswith(b'{"basis"') else _ENTRY).decode(data)
    except (ValueError, msgspec.MsgspecError):
        return None
