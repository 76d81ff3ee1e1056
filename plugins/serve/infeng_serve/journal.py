"""The journal of accepted calls, which can be replayed: the same request and seed give the same bytes.

An entry is a line ``CRC-32 in hex, a space, JSON``, passed to the operating system before the answer begins. So every
accepted call outlives the process, and no client has had an answer to a call whose line was cut off by a kill. Each
process begins a new file and removes files beyond the age and size limits. Without a directory entries live in memory.

Only files that belong to this user and have a journal's name are read and removed. While the disk accepts no writes,
calls are still answered and entries live in memory only; ``trouble`` gives the reason.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from infeng_core.api import ResourceError, UsageError, get_logger, own_file, require_trusted
from infeng_serve.fingerprint import Fingerprint, changes, digest_of

FILES = 4
"""Number of files that fill the size limit; the oldest file is removed as a whole."""

_NAME = re.compile(r"[0-9]{10,18}\.journal")
_REMEDY = "choose another directory, which only this user may write"
_PORTION = 1 << 16
"""Bytes of an oversized line that are skipped at a time."""

_log = get_logger(__name__)


class Entry(msgspec.Struct, frozen=True):
    """One accepted call."""

    id: str
    """The call's unique id, which names its frames and its stream."""
    path: str
    """The route that was called."""
    tenant: str
    created: int
    """Unix time in seconds, as in the response."""
    body: bytes
    """The request body as received."""
    seeds: tuple[int, ...]
    """The seed of each choice, given or drawn."""
    fingerprint: str = msgspec.field(default="", name="basis")  # the name in files
    """Digest of the server's fingerprint; ``Journal.add`` sets it."""
    adapters: tuple[tuple[str, str, str], ...] = ()
    """(name, source, content id or "" until it is known) of each adapter of the call."""
    key: str = ""
    """The client's Idempotency-Key."""
    name: str = ""
    """The client's id of the call, which the response carries and which need not be unique; "": ``id``."""

    @property
    def size(self) -> int:
        """Bytes that the entry counts towards the size limit."""
        return len(self.body) + 512

    @property
    def is_open(self) -> bool:
        """Whether the content id of an adapter is not known yet."""
        return not all(id for _, _, id in self.adapters)


class Head(msgspec.Struct, frozen=True):
    """The first line of a file."""

    fingerprint: dict[str, str] = msgspec.field(name="basis")  # the name in files
    """Fingerprint of the server that wrote the file."""


class Journal:
    """The recently accepted calls. Thread-safe."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        keep: float = 3600.0,
        most_bytes: int = 256_000_000,
        most_line: int = 64_000_000,
        syncs: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keep entries for ``keep`` seconds and up to ``most_bytes``; with a directory they outlive the process.

        most_line: most bytes of a line that is read. syncs: whether an entry is synced to the disk before its answer
        begins.

        Raises UsageError for a directory that cannot be used or that another server uses.
        """
        self._keep, self._most_bytes, self._syncs, self._clock = keep, most_bytes, syncs, clock
        self._entries: OrderedDict[tuple[str, str], Entry] = OrderedDict()  # by tenant and id, oldest first
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}  # tenant and Idempotency-Key -> tenant and id
        self._bytes = 0
        self._guard = threading.Lock()
        self._fingerprint: Fingerprint = {}
        self._digest = ""
        self.trouble = ""
        """Reason why entries are not written to the directory; "" if they are."""
        self._files = None if directory is None else _Files(directory, most_bytes // FILES, most_line)

    def read(self) -> int:
        """Read the entries of earlier processes and return their number. Must be called before the first ``add``.

        A full journal takes some seconds. Unreadable files, and files of other users, are skipped with a warning.
        """
        if self._files is None:
            return 0
        count = 0
        for entry in self._files.read(self._oldest):
            with self._guard:
                self._put(entry)
            count += 1
        return count

    def begin(self, fingerprint: Fingerprint) -> int:
        """Set this process's fingerprint. Must be called before the first ``add``.

        Returns the number of read calls that have another fingerprint, and so would get other bytes.
        """
        with self._guard:
            self._fingerprint, self._digest = fingerprint, digest_of(fingerprint)
            if self._files is not None:
                self._files.fingerprints[self._digest] = fingerprint
            return sum(entry.fingerprint != self._digest for entry in self._entries.values())

    def changes(self, entry: Entry) -> dict[str, str]:
        """Return a phrase for each difference between this server's fingerprint and that of a call, by name."""
        if entry.fingerprint == self._digest:
            return {}
        before = {} if self._files is None else self._files.fingerprints.get(entry.fingerprint, {})
        return changes(before, self._fingerprint)

    @property
    def is_kept(self) -> bool:
        """Whether entries are kept in a directory, so that any call may be replayed."""
        return self._files is not None

    def add(self, entry: Entry) -> None:
        """Add or update a call; it is written when this returns, unless the disk refuses."""
        entry = msgspec.structs.replace(entry, fingerprint=self._digest)
        with self._guard:
            if self._files is not None:
                self._write(self._files, entry)
            self._put(entry)

    def _write(self, files: _Files, entry: Entry) -> None:
        try:
            files.append(entry, self._most_bytes, syncs=self._syncs)
        except OSError as error:
            trouble = error.strerror or str(error)
            if trouble != self.trouble:
                what = "the journal cannot be written: calls are answered, but not again after a restart"
                _log.warning(what, directory=str(files.directory), reason=trouble)
            self.trouble = trouble
        else:
            if self.trouble:
                _log.warning("the journal is written again", directory=str(files.directory))
            self.trouble = ""

    def find(self, tenant: str, id: str) -> Entry | None:
        """Return a tenant's call with this id, None if it is not kept."""
        with self._guard:
            self._expire()
            return self._entries.get((tenant, id))

    def repeated(self, tenant: str, key: str) -> Entry | None:
        """Return a tenant's call with this Idempotency-Key, None if it is not kept."""
        with self._guard:
            self._expire()
            return self._entries.get(self._keys.get((tenant, key), ("", "")))

    def close(self) -> None:
        """Release the directory for other servers."""
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
        """Drop entries beyond the age and size limits, except the latest one."""
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
    """The journal's files in a directory, which one server at a time uses."""

    def __init__(self, directory: Path, full: int, most_line: int) -> None:
        """Lock the directory. full: bytes after which a new file is begun."""
        self.directory = directory
        self._full = full
        self._most_line = most_line
        self.fingerprints: dict[str, Fingerprint] = {}
        """Fingerprints of all files by their digests."""
        try:
            directory.mkdir(0o700, parents=True, exist_ok=True)
            require_trusted(directory, UsageError, _REMEDY)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._lock = os.open(directory / "lock", flags, 0o600)
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
        """Yield the entries of earlier processes in order; removes files with no entry after ``oldest``."""
        for path in self._paths():
            try:
                yield from self._entries(path, oldest)
            except ResourceError as error:
                _log.warning("a file of the journal is skipped", reason=str(error))
            except OSError as error:
                _log.warning("a file of the journal is skipped", path=str(path), reason=error.strerror or str(error))

    def _entries(self, path: Path, oldest: float) -> Iterator[Entry]:
        broken = 0
        with own_file(path, remedy="remove it") as handle:
            status = os.fstat(handle)
            if status.st_mtime < oldest:
                path.unlink(missing_ok=True)
                return
            if status.st_size > FILES * self._full + self._most_line:
                raise ResourceError(f"{path}", "is larger than the journal may be", "remove it")
            for line in _lines(handle, self._most_line):
                found = _read(line)
                if found is None:
                    broken += 1
                elif isinstance(found, Head):
                    self.fingerprints[digest_of(found.fingerprint)] = found.fingerprint
                elif found.created >= oldest:
                    yield found
        if broken:
            _log.warning("damaged lines of the journal are skipped", path=str(path), lines=broken)

    def append(self, entry: Entry, most_bytes: int, *, syncs: bool) -> None:
        """Append an entry."""
        line = _line(entry)
        head = _line(Head(dict(self.fingerprints[entry.fingerprint]))) if entry.fingerprint else b""
        is_gone = self._handle >= 0 and not os.fstat(self._handle).st_nlink  # the file was removed
        if self._handle < 0 or is_gone or self._size + len(line) > self._full:
            self._begin(most_bytes - len(head) - len(line))
        if not self._size:
            self._write(head)
        self._write(line)
        if syncs:
            os.fdatasync(self._handle)

    def _write(self, line: bytes) -> None:
        """Append a line: all of it, or none and OSError."""
        done = 0
        try:
            while done < len(line):
                done += os.write(self._handle, line[done:])
        except OSError:
            os.ftruncate(self._handle, self._size)
            raise
        self._size += done

    def close(self) -> None:
        """Close the file and release the directory."""
        if self._handle >= 0:
            os.close(self._handle)
        os.close(self._lock)

    def _paths(self) -> list[Path]:
        """Return the files with a journal's name, oldest first."""
        found = (entry.name for entry in os.scandir(self.directory) if _NAME.fullmatch(entry.name))
        return [self.directory / name for name in sorted(found, key=lambda name: int(name.partition(".")[0]))]

    def _begin(self, most_bytes: int) -> None:
        """Begin a new file, and remove the oldest files that exceed the size limit."""
        paths = self._paths()
        sizes = {path: size for path in paths if (size := _own_size(path)) is not None}
        total = sum(sizes.values())
        for path, size in sizes.items():
            if total + self._full <= most_bytes:
                break
            total -= size
            path.unlink(missing_ok=True)
        number = int(paths[-1].stem) + 1 if paths else 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        handle = os.open(self.directory / f"{number:010}.journal", flags, 0o600)
        if self._handle >= 0:
            os.close(self._handle)
        self._handle, self._size = handle, 0


def _own_size(path: Path) -> int | None:
    """Return the size of a regular file that belongs to this user, None for any other."""
    try:
        with own_file(path) as handle:
            return os.fstat(handle).st_size
    except (OSError, ResourceError):
        return None


def _lines(handle: int, most: int) -> Iterator[bytes]:
    """Yield the complete lines of a file without line ends; a line of more than ``most`` bytes is skipped as b""."""
    with os.fdopen(handle, "rb", closefd=False) as file:
        while line := file.readline(most + 1):
            is_whole = line.endswith(b"\n")
            if not is_whole and len(line) <= most:
                return  # the last line was cut off
            yield line[:-1] if is_whole else b""
            del line
            while not is_whole and (rest := file.readline(_PORTION)):
                is_whole = rest.endswith(b"\n")


_ENTRY, _HEAD = msgspec.json.Decoder(Entry), msgspec.json.Decoder(Head)


def _line(content: Entry | Head) -> bytes:
    data = msgspec.json.encode(content)
    return b"%08x %s\n" % (zlib.crc32(data), data)


def _read(line: bytes) -> Entry | Head | None:
    """Parse a line; returns None for a damaged one."""
    checksum, _, data = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(data):
            return None
        return (_HEAD if data.startswith(b'{"basis"') else _ENTRY).decode(data)
    except (ValueError, msgspec.MsgspecError):
        return None
