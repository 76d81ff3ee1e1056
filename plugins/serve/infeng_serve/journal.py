"""Calls that were accepted, so that they can be answered again: the same request and seed give the same bytes.

An entry is a line ``CRC-32 in hex, a space, JSON``, written and handed to the system before the answer begins. So what
was accepted outlives the process; a line that a kill cut off is one that no client has heard of. Each process begins a
file of its own and removes what is older, or more, than may be kept. Without a directory entries live in memory.

Files are read and removed only where they are this user's own and have a name that the journal gives. Where the disk
takes no more, calls are answered all the same and entries live in memory until it does again: ``trouble`` says so.
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
"""Files that the most bytes are spread over: the oldest goes as a whole."""

_NAME = re.compile(r"[0-9]{10,18}\.journal")
_REMEDY = "choose another directory, which only this user may write"
_PORTION = 1 << 16
"""Bytes of a line that is too long which are passed over at a time."""

_log = get_logger(__name__)


class Entry(msgspec.Struct, frozen=True):
    """One accepted call."""

    id: str
    """Of the call, which no other has: frames and the rest of a stream are named by it."""
    path: str
    """The route that was called."""
    tenant: str
    created: int
    """Seconds since 1970, as the response says."""
    body: bytes
    """What was asked, as it came."""
    seeds: tuple[int, ...]
    """Of each choice, given or drawn."""
    fingerprint: str = msgspec.field(default="", name="basis")  # the name in files
    """Digest of what the answer's bytes depend on; ``Journal.add`` sets it."""
    adapters: tuple[tuple[str, str, str], ...] = ()
    """(name, where it was loaded from, content id or "" where nothing was answered yet) of those that answer."""
    key: str = ""
    """The client's Idempotency-Key."""
    name: str = ""
    """What the client calls it, perhaps another call too; the response is named by it. "": by ``id``."""

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

    fingerprint: dict[str, str] = msgspec.field(name="basis")  # the name in files
    """What the bytes of the answers depend on."""


class Journal:
    """What was accepted lately. Several threads may use it."""

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
        """Keep entries for ``keep`` seconds and ``most_bytes``, with a directory beyond this process: see ``read``.

        most_line: bytes of a line that is read. syncs: whether an entry is on the medium, not only with the system,
        before its answer begins.

        Raises UsageError for a directory that cannot be used or that another server uses.
        """
        self._keep, self._most_bytes, self._syncs, self._clock = keep, most_bytes, syncs, clock
        self._entries: OrderedDict[tuple[str, str], Entry] = OrderedDict()  # by tenant and id, the oldest first
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}  # tenant and Idempotency-Key -> tenant and id
        self._bytes = 0
        self._guard = threading.Lock()
        self._fingerprint: Fingerprint = {}
        self._digest = ""
        self.trouble = ""
        """Why entries are in memory alone although there is a directory; "" where they are written."""
        self._files = None if directory is None else _Files(directory, most_bytes // FILES, most_line)

    def read(self) -> int:
        """Take what earlier processes wrote, before the first ``add``; return how many entries those are.

        A full journal takes some seconds. What cannot be read, or is not ours, is left out with a warning.
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
        """Say what this process's answers depend on, before the first ``add``.

        Returns how many of the calls that were read it would answer with other bytes.
        """
        with self._guard:
            self._fingerprint, self._digest = fingerprint, digest_of(fingerprint)
            if self._files is not None:
                self._files.fingerprints[self._digest] = fingerprint
            return sum(entry.fingerprint != self._digest for entry in self._entries.values())

    def changes(self, entry: Entry) -> dict[str, str]:
        """Return what is not as it was when a call was accepted, a phrase for each: its answer could be another."""
        if entry.fingerprint == self._digest:
            return {}
        before = {} if self._files is None else self._files.fingerprints.get(entry.fingerprint, {})
        return changes(before, self._fingerprint)

    @property
    def is_kept(self) -> bool:
        """Whether entries outlive the process, so that every answer may be asked for again."""
        return self._files is not None

    def add(self, entry: Entry) -> None:
        """Keep a call, again where more is known of it; it is written when this returns, if the disk takes it."""
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
        """Return the call of a tenant with this id, if it is still kept."""
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

    def __init__(self, directory: Path, full: int, most_line: int) -> None:
        """Take the directory; a file with more than ``full`` bytes is followed by another."""
        self.directory = directory
        self._full = full
        self._most_line = most_line
        self.fingerprints: dict[str, Fingerprint] = {}
        """What answers of all files depend on, by their digests."""
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
        """Give the entries of earlier processes in their order; files without a younger one than ``oldest`` go."""
        for path in self._paths():
            try:
                yield from self._entries(path, oldest)
            except ResourceError as error:
                _log.warning("a file of the journal is not used", reason=str(error))
            except OSError as error:
                _log.warning("a file of the journal is not used", path=str(path), reason=error.strerror or str(error))

    def _entries(self, path: Path, oldest: float) -> Iterator[Entry]:
        broken = 0
        with own_file(path, remedy="remove it") as handle:
            status = os.fstat(handle)
            if status.st_mtime < oldest:
                path.unlink(missing_ok=True)
                return
            if status.st_size > FILES * self._full + self._most_line:
                raise ResourceError(f"{path}", "is larger than all that is kept", "remove it")
            for line in _lines(handle, self._most_line):
                found = _read(line)
                if found is None:
                    broken += 1
                elif isinstance(found, Head):
                    self.fingerprints[digest_of(found.fingerprint)] = found.fingerprint
                elif found.created >= oldest:
                    yield found
        if broken:
            _log.warning("lines of the journal are damaged and not used", path=str(path), lines=broken)

    def append(self, entry: Entry, most_bytes: int, *, syncs: bool) -> None:
        """Write an entry behind the others."""
        line = _line(entry)
        head = _line(Head(dict(self.fingerprints[entry.fingerprint]))) if entry.fingerprint else b""
        is_gone = self._handle >= 0 and not os.fstat(self._handle).st_nlink  # somebody has removed the file
        if self._handle < 0 or is_gone or self._size + len(line) > self._full:
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
        """Return the files that have a name of the journal's, the oldest first."""
        found = (entry.name for entry in os.scandir(self.directory) if _NAME.fullmatch(entry.name))
        return [self.directory / name for name in sorted(found, key=lambda name: int(name.partition(".")[0]))]

    def _begin(self, most_bytes: int) -> None:
        """Begin another file, and remove the oldest ones of ours for it."""
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
    """Return the bytes of a file of ours, None for one that is not."""
    try:
        with own_file(path) as handle:
            return os.fstat(handle).st_size
    except (OSError, ResourceError):
        return None


def _lines(handle: int, most: int) -> Iterator[bytes]:
    """Give the whole lines of a file without their ends; one of more than ``most`` bytes as b"" and unread."""
    with os.fdopen(handle, "rb", closefd=False) as file:
        while line := file.readline(most + 1):
            is_whole = line.endswith(b"\n")
            if not is_whole and len(line) <= most:
                return  # it was cut off
            yield line[:-1] if is_whole else b""
            del line
            while not is_whole and (rest := file.readline(_PORTION)):
                is_whole = rest.endswith(b"\n")


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
