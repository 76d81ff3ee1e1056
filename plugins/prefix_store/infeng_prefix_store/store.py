"""Computed prefixes on disk: KV blocks in segment files, looked up by the tokens of the prefix.

A directory may serve several processes and models at once. Each process appends to its own segments and holds their
locks meanwhile. A process that needs room removes the oldest segment without a writer. Unreadable blocks are not an
error: the engine computes them again.
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
"""Number of segments that fill the cap; eviction removes one at a time."""

WRITE_BYTES = 16 << 20
"""Bytes of blocks that are copied out of the KV cache at once."""

READ_BYTES = 2 << 20
"""Bytes of one read: few enough to stay in the CPU's cache until they are checked and copied."""


class Saved(NamedTuple):
    """A saved block: its place in a prefix, and the segment and record that hold it."""

    place: Place
    segment: int
    slot: int


class DiskStore:
    """Blocks on disk by the prefix that they end. Not thread-safe; other processes may use the directory.

    ``found = store.find(key, tokens, begin)`` looks up in memory which blocks from block ``begin`` on are saved, and
    ``store.load(found, blocks, write_blocks)`` reads them into the KV cache, up to the first damaged one.
    """

    def __init__(self, directory: Path, *, identity: str, block_bytes: int, most_bytes: int) -> None:
        """Open a directory, or create it.

        identity: the model and the layout of its blocks, from ``LoadedModel.id`` and ``BlockAccess.block_layout``.
            Blocks of other identities in the directory are ignored.
        block_bytes: bytes of one block.
        most_bytes: cap on the size of all segments in the directory, of any identity.

        Raises ResourceError if the directory cannot be created, belongs to another user or is writable by all users,
        and if ``most_bytes`` is too small for one block.
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
        self._sizes: dict[int, int] = {}  # bytes of each segment when it was last read
        self._reported: set[Path] = set()  # unreadable files that were logged
        self._writer: Writer | None = None
        self._buffer_records = max(1, READ_BYTES // self._kind.stride)
        self._buffer = np.empty((self._buffer_records, self._kind.stride), np.uint8)
        self.blocks_saved = 0
        self.blocks_loaded = 0
        self.blocks_refused = 0
        """Number of damaged or unexpected records."""
        self.refresh()

    def __len__(self) -> int:
        """Return how many saved blocks are known."""
        return len(self._saved)

    def refresh(self) -> None:
        """Update the known blocks with what other processes saved or removed since the last call."""
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
        """Read the saved blocks of ``tokens`` (n,) from block ``begin`` on into ``blocks``; return how many."""
        found = self.find(key, tokens, begin)
        return self.load(found, blocks[: len(found)], write_blocks)

    def load(
        self,
        found: Sequence[Saved],
        blocks: NDArray[np.int32],
        write_blocks: Callable[[NDArray[np.int32], NDArray[np.uint8]], None],
    ) -> int:
        """Read the ``found`` blocks into ``blocks`` (len(found),) of the KV cache; return how many were written.

        write_blocks: as ``BlockAccess.write_blocks``.

        Each record is verified before its block is written: key, tokens, all tokens before them, and checksum. The
        first record that fails is forgotten, with a warning, and loading stops before it.
        """
        done = 0
        for begin, end in _runs(found, self._buffer_records):
            records = self._buffer[: end - begin]
            try:
                self._read_run(found[begin], records)
            except InfengError as error:
                if self._segments.path(found[begin].segment).exists():  # else another process has evicted it
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
        """Append the blocks of ``entries`` that are not saved yet; return how many were appended.

        entries: as ``PrefixTree.entries`` gives them: each block after its parent.
        read_blocks: as ``BlockAccess.read_blocks``.
        most_blocks: stop after so many, so that the caller can do other work in between; None: save all.

        If writing fails, a warning is logged and the remaining blocks are not saved.
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
        """Remove every segment, of any identity, that no other process writes."""
        self.close()
        for number in self._segments.numbers():
            self._remove(number)

    def close(self) -> None:
        """Release this process's segment to other writers; the next save opens one again."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    # ----------------------------------------------------------------------------------------------------- reading ---

    def _learn(self, number: int) -> None:
        """Add the new records of a segment to the known blocks; a segment of another kind counts as empty."""
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
                        self._saved[digest] = (number, slot)  # the newest wins: an older one may be damaged
        except InfengError as error:
            path = self._segments.path(number)
            if path not in self._reported and path.exists():  # else another process has evicted it
                self._reported.add(path)
                _log.warning("saved prefixes cannot be read", error=str(error))

    def _read_run(self, first: Saved, records: NDArray[np.uint8]) -> None:
        """Fill ``records`` from the segment, beginning at ``first``; raises ResourceError."""
        with own_file(self._segments.path(first.segment), remedy="it will be computed again", folders=0) as handle:
            begin = HEADER_BYTES + first.slot * self._kind.stride
            read_into(handle, records.reshape(-1).data, begin, self._segments.path(first.segment), ResourceError)

    def _whole(self, found: Sequence[Saved], records: NDArray[np.uint8]) -> int:
        """Return how many of these records, from the first on, are valid; the first invalid one is forgotten."""
        for index, (saved, record) in enumerate(zip(found, records, strict=True)):
            block = record[HEAD_BYTES : HEAD_BYTES + self._kind.block_bytes]
            if saved.place.head(block) != record[:HEAD_BYTES].tobytes():
                path = self._segments.path(saved.segment)
                _log.warning("damaged record of a saved prefix is ignored", path=str(path), record=saved.slot)
                self.blocks_refused += 1
                self._saved.pop(saved.place.digest, None)
                return index
        return len(found)

    def _forget(self, number: int) -> None:
        """Drop the known blocks of a segment that is gone."""
        self._sizes.pop(number, None)
        self._saved = {digest: at for digest, at in self._saved.items() if at[0] != number}

    # ----------------------------------------------------------------------------------------------------- writing ---

    def _unsaved(self, entries: Iterable[PrefixEntry]) -> Iterator[tuple[Place, int]]:
        """Yield each block that is not saved yet, once."""
        path: list[bytes] = []  # the digest at each depth of the current path
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
        """Append records; return how many. Raises ResourceError or OSError; blocks written before it stay known."""
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
        """Return a writer with room in its segment; evicts old segments so that it can fill up under the cap."""
        full = self._kind.count(self._segment_bytes)
        if self._writer is not None and not self._writer.is_there():
            self.close()  # the directory was cleared
        if self._writer is not None and self._writer.count >= full:
            self._segments.write_index(self._writer)
            self.close()
        if self._writer is None:
            self._writer = self._reopened(full) or self._segments.created()
        self._make_room()
        return self._writer

    def _reopened(self, full: int) -> Writer | None:
        """Return a writer for the newest segment of this kind that is neither full nor being written, or None."""
        for number in sorted(self._sizes, reverse=True):
            if self._kind.count(self._sizes[number]) >= full:
                continue
            writer = Writer.open(self._segments.path(number), number, self._kind)
            if writer is not None:
                self._learn(number)  # its last writer may have added records
                return writer
        return None

    def _make_room(self) -> None:
        """Remove the oldest segments without a writer until a full segment fits under the cap."""
        sizes = self._segments.sizes()
        own = self._writer.number if self._writer is not None else -1
        total = self._segment_bytes + sum(size for number, size in sizes.items() if number != own)
        for number, size in sizes.items():
            if total <= self._most_bytes:
                return
            if number != own and self._remove(number):
                total -= size
        if total > self._most_bytes:
            why = f"segments in use and other files take {total - self._segment_bytes} bytes of {self._most_bytes}"
            raise ResourceError(f"prefix cache {self._directory}", why, "allow it more")

    def _remove(self, number: int) -> bool:
        """Remove a segment, unless it has a writer or is no segment; return whether it is gone."""
        is_gone = self._segments.remove(number)
        if is_gone:
            self._forget(number)
        return is_gone


def _runs(found: Sequence[Saved], most: int) -> Iterator[tuple[int, int]]:
    """Yield [begin, end) of each run of blocks that are adjacent in one segment, at most ``most`` long."""
    begin = 0
    for end in range(1, len(found) + 1):
        last = found[end - 1]
        if end in (len(found), begin + most) or found[end][1:] != (last.segment, last.slot + 1):
            yield begin, end
            begin = end
