"""Bytes of a segment file of saved prefixes: a header, then records of one size. See docs/format.md, "Saved prefixes".

A record is a KV block behind a head, which names the tokens of the prefix and has checksums. A reader trusts nothing in
a record: it computes the expected head from the tokens it looks for and the bytes of the block, and compares.
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
"""Token positions of a KV block."""

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
    """Properties that all records of a file share."""

    identity: bytes  # (32,) digest of the model and the layout of its blocks
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
        """Return the header of a segment file, ``HEADER_BYTES`` long."""
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
    """Return whether a file with this header is a segment, of any kind and version."""
    return header.startswith(_SEGMENT_MAGIC)


class Place(NamedTuple):
    """A block's place in a prefix: its 16 tokens and the digest ``parent`` of all tokens before them."""

    key: bytes
    parent: bytes
    digest: bytes
    """(32,) digest of the key and all tokens up to the end of this block."""
    tokens: bytes

    def head(self, block: NDArray[np.uint8]) -> bytes:
        """Return the head of this block's record. block: the bytes of the block.

        The checksum is CRC-32: it keeps up with storage (3 GB/s, without the GIL) and detects every single burst error,
        the usual damage by disks and interrupted writes. File permissions, not the checksum, prevent forgery.
        """
        fields = _HEAD.pack(_RECORD_MAGIC, crc32(block.data), *self)
        return (fields + _CHECKSUM.pack(crc32(fields))).ljust(HEAD_BYTES, b"\0")


def digest_of(head: bytes) -> bytes | None:
    """Return the digest in a record's head, None if the head is damaged."""
    fields, end = head[: _HEAD.size], head[_HEAD.size : _HEAD.size + 4]
    is_whole = fields.startswith(_RECORD_MAGIC) and end == _CHECKSUM.pack(crc32(fields))
    return head[_DIGEST] if is_whole else None


def digests_of(heads: bytes) -> Iterator[bytes]:
    """Yield the digest of each head; the heads must be intact."""
    for begin in range(0, len(heads), HEAD_BYTES):
        yield heads[begin + _DIGEST.start : begin + _DIGEST.stop]


def after(key: bytes, parent: bytes, tokens: bytes) -> Place:
    """Return the place of the block of ``tokens`` that follows the prefix ``parent``; the first parent is the key."""
    return Place(key, parent, hashlib.sha256(parent + tokens).digest(), tokens)


def places(key: bytes, tokens: NDArray[np.int32]) -> Iterator[Place]:
    """Yield the places of all full blocks of ``tokens`` (n,), in order."""
    data = tokens[: len(tokens) // TOKENS * TOKENS].astype(np.int32, copy=False).tobytes()
    parent = key
    for begin in range(0, len(data), 4 * TOKENS):
        place = after(key, parent, data[begin : begin + 4 * TOKENS])
        parent = place.digest
        yield place
