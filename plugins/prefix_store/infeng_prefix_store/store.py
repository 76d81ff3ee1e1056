"""Prefixes that outlive a process: cache blocks in segment files, found by the tokens that they stand for.

A directory may serve several processes and models at once. Each process appends to segments of its own and holds their
locks for as long; whoever needs room removes the oldest segment that nobody writes. What cannot be read is no error: it
is computed again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import InfengError, ResourceError, get_logger, own_file, read_into, require_own
from infeng_core.api.engines import PrefixEntry
from infeng_prefix_store.records import HEAD_BYTES, HEADER_BYTES, TOKENS, Kind, Place, after, places
from infeng_prefix_store.segments import Segments, Writer

_log = get_logger(__name__)

SEGMENTS = 16
"""Segments that one process fills up to the cap: what goes at once when room is wanted is one of them."""

WRITE_BYTES = 16 << 20
"""Bytes of blocks that are copied out of the cache at once."""

READ_BYTES = 2 << 20
"""Bytes that are read at once: few enough to be in the processor's cache when they are checked and written on."""


class Saved(NamedTuple):
    """A saved block: what it stands for, and where it lies."""

    place: Place
    segment: int
    slot: int


class DiskStore:
    """Blocks on disk by the prefix that they end. Used by one thread at a time; other processes may use the directory.

    ``found = store.find(key, tokens, begin)`` says cheaply which blocks from block ``begin`` on are there, and
    ``store.load(found, blocks, write_blocks)`` puts them into the cache, as many as are whole.
    """

    def __init__(self, directory: Path, *, identity: str, block_bytes: int, most_bytes: int) -> None:
        """Open a directory, which need not exist.

        identity: of the model and of what the bytes of a block mean: ``LoadedModel.id`` and
            ``BlockAccess.block_layout``. Other blocks in the directory are not seen.
        block_bytes: bytes of one block.
        most_bytes: all segments in the directory together, of whatever identity.

        Raises ResourceError where the directory cannot be made, belongs to somebody else or may be written by
        everybody, and where ``most_bytes`` has no room for a block.
        """
        self._directory = directory
        self._kind = Kind.of(identity, block_bytes)
        self._segments = Segments(directory, self._kind)
        self._most_bytes = most_bytes
        self._segment_bytes = max(most_bytes // SEGMENTS, HEADER_BYTES + self._kind.stride)
        if self._segment_bytes > most_bytes:
            why = f"{most_bytes} bytes do not hold one block of {block_bytes}"
            raise ResourceError(f"prefix cache {directory}", why, "allow it more")
        try:
            directory.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            why, remedy = f"cannot be made ({error.strerror})", "choose another directory"
            raise ResourceError(f"prefix cache {directory}", why, remedy) from None
        require_own(directory)
        self._saved: dict[bytes, tuple[int, int]] = {}  # digest -> segment, slot
        self._sizes: dict[int, int] = {}  # bytes that are known of each segment of this kind
        self._reported: set[Path] = set()  # what cannot be read and was said to be so
        self._writer: Writer | None = None
        self._buffer_records = max(1, READ_BYTES // self._kind.stride)
        self._buffer = np.empty((self._buffer_records, self._kind.stride), np.uint8)
        self.blocks_saved = 0
        self.blocks_loaded = 0
        self.blocks_refused = 0
        """Records that were not what they should have been."""
        self.refresh()

    def __len__(self) -> int:
        """Return how many blocks are known to be saved."""
        return len(self._saved)

    def refresh(self) -> None:
        """Look for what other processes have saved or removed since the last time."""
        there = self._segments.numbers()
        for number in self._sizes.keys() - there:
            self._forget(number)
        for number in sorted(there):
            self._learn(number)

    def find(self, key: bytes, tokens: NDArray[np.int32], begin: int = 0) -> list[Saved]:
        """Return the saved blocks of the prefix ``tokens`` (n,), from block ``begin`` on without a gap."""
        found = []
        for index, place in enumerate(places(key, tokens)):
            if index < begin:
                continue
            at = self._saved.get(place.digest)
            if at is None:
                break
            found.append(Saved(place, *at))
        return found

    def restore(
        self,
        key: bytes,
        tokens: NDArray[np.int32],
        begin: int,
        blocks: NDArray[np.int32],
        write_blocks: Callable[[NDArray[np.int32], NDArray[np.uint8]], None],
    ) -> int:
        """Write what is saved of ``tokens`` (n,), from block ``begin`` on, to ``blocks``; return how many."""
        found = self.find(key, tokens, begin)
        return self.load(found, blocks[: len(found)], write_blocks)

    def load(
        self,
        found: Sequence[Saved],
        blocks: NDArray[np.int32],
        write_blocks: Callable[[NDArray[np.int32], NDArray[np.uint8]], None],
    ) -> int:
        """Write what was ``found`` to ``blocks`` (len(found),) of the cache; return how many of the first are written.

        write_blocks: as ``BlockAccess.write_blocks``.

        Each is compared with what it must be before it is written: key, tokens, all tokens before them, and checksum.
        One that is not is forgotten, with a warning, and those behind it are left out.
        """
        done = 0
        for begin, end in _runs(found, self._buffer_records):
            records = self._buffer[: end - begin]
            try:
                self._read_run(found[begin], records)
            except InfengError as error:
                if self._segments.path(found[begin].segment).exists():  # else another process has made room
                    _log.warning("saved prefixes cannot be read", error=str(error))
                self._forget(found[begin].segment)
                break
            whole = self._whole(found[begin:end], records)
            rows = records[:whole, HEAD_BYTES : HEAD_BYTES + self._kind.block_bytes]
            write_blocks(blocks[begin : begin + whole], rows)
            done = begin + whole
            if done < end:
                break
        self.blocks_loaded += done
        return done

    def save(
        self,
        entries: Iterable[PrefixEntry],
        read_blocks: Callable[[NDArray[np.int32]], NDArray[np.uint8]],
        most_blocks: int | None = None,
    ) -> int:
        """Append the blocks of ``entries`` that are not saved yet; return how many that were.

        entries: as ``PrefixTree.entries`` gives them: a block after the one before it on its path.
        read_blocks: as ``BlockAccess.read_blocks``.
        most_blocks: stop after so many, so that a caller can look for work in between; None: save all.

        Where the disk refuses, a warning is logged and the rest is left out.
        """
        if most_blocks == 0:
            return 0
        self.refresh()
        batch = max(1, WRITE_BYTES // self._kind.block_bytes)
        saved = 0
        new: list[tuple[Place, int]] = []
        try:
            for place, block in self._unsaved(entries):
                new.append((place, block))
                if len(new) == batch or saved + len(new) == most_blocks:
                    saved += self._append(new, read_blocks)
                    new = []
                if saved == most_blocks:
                    break
            if new:
                saved += self._append(new, read_blocks)
            if self._writer is not None:
                self._segments.write_index(self._writer)
        except (ResourceError, OSError) as error:
            _log.warning("prefixes cannot be saved", directory=str(self._directory), error=str(error))
        return saved

    def clear(self) -> None:
        """Remove every segment, of whatever identity, that no other process writes."""
        self.close()
        for number in self._segments.numbers():
            self._remove(number)

    def close(self) -> None:
        """Let others write to this process's segment; saving again opens one again."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    # ----------------------------------------------------------------------------------------------------- reading ---

    def _learn(self, number: int) -> None:
        """Take in the records of a segment that are new; one that is not of this kind counts as empty."""
        known = self._sizes.get(number)
        try:
            with own_file(self._segments.path(number), folders=0) as handle:
                size = os.fstat(handle).st_size
                if size == known:
                    return
                if known is not None and size < known:  # another file with the same number
                    self._forget(number)
                    known = None
                self._sizes[number] = size
                if not self._segments.is_ours(handle, number):
                    return
                first = 0 if known is None else self._kind.count(known)
                digests = self._segments.digests(handle, number, first, self._kind.count(size))
                for slot, digest in enumerate(digests, first):
                    if digest is not None:
                        self._saved[digest] = (number, slot)  # the newest: an older one may have been refused
        except InfengError as error:
            path = self._segments.path(number)
            if path not in self._reported and path.exists():  # else another process has made room
                self._reported.add(path)
                _log.warning("saved prefixes cannot be read", error=str(error))

    def _read_run(self, first: Saved, records: NDArray[np.uint8]) -> None:
        """Fill ``records`` from the segment; raises ResourceError."""
        with own_file(self._segments.path(first.segment), remedy="it will be computed again", folders=0) as handle:
            begin = HEADER_BYTES + first.slot * self._kind.stride
            read_into(handle, records.reshape(-1).data, begin, self._segments.path(first.segment), ResourceError)

    def _whole(self, found: Sequence[Saved], records: NDArray[np.uint8]) -> int:
        """Return how many of these records, from the first on, are what they must be."""
        for index, (saved, record) in enumerate(zip(found, records, strict=True)):
            block = record[HEAD_BYTES : HEAD_BYTES + self._kind.block_bytes]
            if saved.place.head(block) != record[:HEAD_BYTES].tobytes():
                path = self._segments.path(saved.segment)
                _log.warning("a damaged record of a saved prefix is not used", path=str(path), record=saved.slot)
                self.blocks_refused += 1
                self._saved.pop(saved.place.digest, None)
                return index
        return len(found)

    def _forget(self, number: int) -> None:
        """Let go of what a segment holds that is gone."""
        self._sizes.pop(number, None)
        self._saved = {digest: at for digest, at in self._saved.items() if at[0] != number}

    # ----------------------------------------------------------------------------------------------------- writing ---

    def _unsaved(self, entries: Iterable[PrefixEntry]) -> Iterator[tuple[Place, int]]:
        """Give the blocks that are to be saved, each once."""
        path: list[bytes] = []  # what each depth of the current path stands for
        given: set[bytes] = set()
        for key, depth, tokens, (block,), _ in entries:
            if len(key) != 32 or len(tokens) != 4 * TOKENS or depth > len(path):
                raise ValueError("entries: each needs a key of 32 bytes, 16 tokens, and the block before it")
            place = after(key, path[depth - 1] if depth else key, tokens)
            path[depth:] = [place.digest]
            if place.digest not in self._saved and place.digest not in given:
                given.add(place.digest)
                yield place, block

    def _append(
        self, new: Sequence[tuple[Place, int]], read_blocks: Callable[[NDArray[np.int32]], NDArray[np.uint8]]
    ) -> int:
        """Write records; return how many. Raises ResourceError or OSError; what was written by then is known."""
        data = read_blocks(np.array([block for _, block in new], np.int32))
        done = 0
        while done < len(new):
            writer = self._writer_with_room()
            count = min(len(new) - done, self._kind.count(self._segment_bytes) - writer.count)
            records = [(place, block) for (place, _), block in zip(new[done : done + count], data[done:], strict=False)]
            first = writer.count
            writer.append(records)
            for slot, (place, _) in enumerate(records, first):
                self._saved[place.digest] = (writer.number, slot)
            self._sizes[writer.number] = writer.size
            self.blocks_saved += count
            done += count
        return done

    def _writer_with_room(self) -> Writer:
        """Return a writer whose segment is not full, and for which there is room under the cap."""
        full = self._kind.count(self._segment_bytes)
        if self._writer is not None and not self._writer.is_there():
            self.close()  # somebody has cleared the directory
        if self._writer is not None and self._writer.count >= full:
            self._segments.write_index(self._writer)
            self.close()
        if self._writer is None:
            self._writer = self._reopened(full) or self._segments.created()
        self._make_room()
        return self._writer

    def _reopened(self, full: int) -> Writer | None:
        """Return a writer for the newest segment of this kind that is not full and nobody writes, or None."""
        for number in sorted(self._sizes, reverse=True):
            if self._kind.count(self._sizes[number]) >= full:
                continue
            writer = Writer.open(self._segments.path(number), number, self._kind)
            if writer is not None:
                self._learn(number)  # what its last writer added
                return writer
        return None

    def _make_room(self) -> None:
        """Remove the oldest segments that nobody writes until a full segment fits under the cap."""
        sizes = self._segments.sizes()
        own = self._writer.number if self._writer is not None else -1
        total = self._segment_bytes + sum(size for number, size in sizes.items() if number != own)
        for number, size in sizes.items():
            if total <= self._most_bytes:
                return
            if number != own and self._remove(number):
                total -= size
        if total > self._most_bytes:
            why = f"segments that others write, or that are none, take {total - self._segment_bytes} bytes of it"
            raise ResourceError(f"prefix cache {self._directory}", why, "allow it more")

    def _remove(self, number: int) -> bool:
        """Remove a segment unless somebody writes it or it is none; return whether it is gone."""
        is_gone = self._segments.remove(number)
        if is_gone:
            self._forget(number)
        return is_gone


def _runs(found: Sequence[Saved], most: int) -> Iterator[tuple[int, int]]:
    """Give [begin, end) of the blocks that follow each other in one segment, up to ``most`` at a time."""
    begin = 0
    for end in range(1, len(found) + 1):
        last = found[end - 1]
        if end in (len(found), begin + most) or found[end][1:] != (last.segment, last.slot + 1):
            yield begin, end
            begin = end
