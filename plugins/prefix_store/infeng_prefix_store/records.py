"""Bytes of a segment file of saved prefixes: a header, then records of one size. See docs/format.md, "Saved prefixes".

A record is a cache block with what it stands for. Nothing in a record is believed: who wants a block knows which record
it must be, makes its head from that and from the bytes that are there, and compares.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32  # zlib's numbers at the speed of memory

VERSION = 1

TOKENS = 16
"""Positions of a cache block."""

HEADER_BYTES = 64
HEAD_BYTES = 192
ALIGN = 64

_HEADER = struct.Struct("<8sIIQ32s")  # magic, version, 0, bytes of a block, digest of the identity
_HEAD = struct.Struct("<4sI32s32s32s64s")  # magic, checksum of the block, key, parent, digest, tokens
_DIGEST = slice(8 + 64, 8 + 96)
_CHECKSUM = struct.Struct("<I")
_SEGMENT_MAGIC, _INDEX_MAGIC, _RECORD_MAGIC = b"infengPS", b"infengPI", b"IPR1"


@dataclass(frozen=True, slots=True)
class Kind:
    """What all records of a file have in common."""

    identity: bytes  # (32,) of the model and the layout of its blocks
    block_bytes: int

    @staticmethod
    def of(identity: str, block_bytes: int) -> Kind:
        """Return the kind of blocks with this identity on machines like this one."""
        return Kind(hashlib.sha256(f"{sys.byteorder}:{TOKENS}:{identity}".encode()).digest(), block_bytes)

    @property
    def stride(self) -> int:
        """Bytes from one record to the next."""
        return HEAD_BYTES + -(-self.block_bytes // ALIGN) * ALIGN

    def count(self, nbytes: int) -> int:
        """Return the number of whole records in a segment file of ``nbytes`` bytes."""
        return max(0, nbytes - HEADER_BYTES) // self.stride

    def segment_header(self) -> bytes:
        """Return the first bytes of a segment file."""
        return self._header(_SEGMENT_MAGIC)

    def index(self, heads: bytes) -> bytes:
        """Return an index file: a header, the heads of all records of a segment, a checksum of both."""
        data = self._header(_INDEX_MAGIC) + heads
        return data + _CHECKSUM.pack(crc32(data))

    def heads(self, index: bytes) -> bytes | None:
        """Return the heads in an index file, None if it is damaged or of another kind."""
        body, end = index[:-4], index[-4:]
        if not body.startswith(self._header(_INDEX_MAGIC)) or end != _CHECKSUM.pack(crc32(body)):
            return None
        heads = body[HEADER_BYTES:]
        return heads if len(heads) % HEAD_BYTES == 0 else None

    def _header(self, magic: bytes) -> bytes:
        fields = _HEADER.pack(magic, VERSION, 0, self.block_bytes, self.identity)
        return (fields + _CHECKSUM.pack(crc32(fields))).ljust(HEADER_BYTES, b"\0")


def is_segment(header: bytes) -> bool:
    """Return whether a file that begins like this is a segment, of whatever kind and version."""
    return header.startswith(_SEGMENT_MAGIC)


class Place(NamedTuple):
    """A block of a prefix: the 16 tokens after those that ``parent`` stands for."""

    key: bytes
    parent: bytes
    digest: bytes
    """(32,) stands for the key and all tokens up to and with these."""
    tokens: bytes

    def head(self, block: NDArray[np.uint8]) -> bytes:
        """Return the head of this block's record, where ``block`` are its bytes.

        CRC-32, because it keeps up with storage (3 GB/s, without Python's lock) and finds every error of one place,
        which is what disks and interrupted writes make. It is no defence against forgery; permissions are.
        """
        fields = _HEAD.pack(_RECORD_MAGIC, crc32(block.data), *self)
        return (fields + _CHECKSUM.pack(crc32(fields))).ljust(HEAD_BYTES, b"\0")


def digest_of(head: bytes) -> bytes | None:
    """Return what the record stands for that has this head, None if the head is damaged."""
    fields, end = head[: _HEAD.size], head[_HEAD.size : _HEAD.size + 4]
    is_whole = fields.startswith(_RECORD_MAGIC) and end == _CHECKSUM.pack(crc32(fields))
    return head[_DIGEST] if is_whole else None


def digests_of(heads: bytes) -> Iterator[bytes]:
    """Give what each record stands for, of heads that are known to be whole."""
    for begin in range(0, len(heads), HEAD_BYTES):
        yield heads[begin + _DIGEST.start : begin + _DIGEST.stop]


def after(key: bytes, parent: bytes, tokens: bytes) -> Place:
    """Return the block of ``tokens`` behind what ``parent`` stands for; the first block's parent is the key."""
    return Place(key, parent, hashlib.sha256(parent + tokens).digest(), tokens)


def places(key: bytes, tokens: NDArray[np.int32]) -> Iterator[Place]:
    """Give the whole blocks of ``tokens`` (n,), in order."""
    data = tokens[: len(tokens) // TOKENS * TOKENS].astype(np.int32, copy=False).tobytes()
    parent = key
    for begin in range(0, len(data), 4 * TOKENS):
        place = after(key, parent, data[begin : begin + 4 * TOKENS])
        parent = place.digest
        yield place
