"""The bytes of an answer over HTTP with the time of each piece, taken apart after the last one has come."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from infeng_bench.load.requests import Reply

IN_CHUNKS, TO_THE_END = -1, -2  # as the bytes of a body that are still to come
END = b"\r\n0\r\n\r\n"  # the last chunk of a chunked body, after the end of the previous chunk

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked")


@dataclass(slots=True, eq=False)
class Answer:
    """What a server sent for a request."""

    reply: Reply
    request: bytes
    status: int = 0  # of HTTP; 0 without an answer
    is_whole: bool = False
    closes: bool = False  # whether the server closes the connection after it
    is_chunked: bool = False
    pieces: list[tuple[float, bytes]] = field(default_factory=list)  # of the body
    left: int = 0  # bytes of the body still to come, or IN_CHUNKS, or TO_THE_END
    _head: bytes = b""
    _tail: bytes = b""

    @property
    def has_begun(self) -> bool:
        """Whether a byte has come."""
        return bool(self.status or self._head)

    @property
    def ends_with_connection(self) -> bool:
        """Whether it ends where the server closes the connection."""
        return self.status > 0 and self.left == TO_THE_END

    def add(self, data: bytes, now: float) -> bytes:
        """Take bytes that came at ``now``; return those of the body."""
        if not self.status:
            data = self._of_body(data)
        if data:
            self.pieces.append((now, data))
            self._tail = (self._tail + data)[-len(END) :]
            if self.left >= 0:
                self.left -= len(data)
        if self.status:
            self.is_whole = self._tail == END if self.left == IN_CHUNKS else self.left == 0
        return data

    def _of_body(self, data: bytes) -> bytes:
        """Parse the head once it is complete; return the bytes after it."""
        self._head += data
        head, found, rest = self._head.partition(b"\r\n\r\n")
        if not found:
            return b""
        head = head.lower()
        self.status = int(head[9:12])
        length = _LENGTH.search(head)
        self.is_chunked = length is None and _CHUNKED.search(head) is not None
        self.left = int(length[1]) if length else IN_CHUNKS if self.is_chunked else TO_THE_END
        self.closes = b"\r\nconnection: close" in head or self.left == TO_THE_END
        return rest

    @property
    def body(self) -> bytes:
        """The body, without the marks of chunks."""
        raw = b"".join(data for _, data in self.pieces)
        return b"".join(raw[begin : begin + size] for begin, size in self._chunks(raw))

    def _chunks(self, raw: bytes) -> Iterator[tuple[int, int]]:
        """Yield where each chunk begins in the bytes of the body, and its size."""
        at = 0
        while self.is_chunked and (end := raw.find(b"\r\n", at)) >= 0:
            size = int(raw[at:end].partition(b";")[0] or b"0", 16)
            if not size:
                return
            yield end + 2, size
            at = end + 2 + size + 2
        if not self.is_chunked:
            yield 0, len(raw)

    def events(self) -> Iterator[tuple[str, float]]:
        """Yield the data of each event of a stream and the time of its last byte; another body is one event."""
        raw = b"".join(data for _, data in self.pieces)
        chunks = list(self._chunks(raw))
        body = b"".join(raw[begin : begin + size] for begin, size in chunks)
        before = [0, *accumulate(size for _, size in chunks)]  # bytes of the body before each chunk
        arrived = list(accumulate(len(data) for _, data in self.pieces))
        if not self.is_stream:
            yield body.decode("utf-8", "replace"), self.reply.ended
            return
        at = 0
        for line in body.splitlines(keepends=True):
            at += len(line)
            name, _, data = line.decode("utf-8", "replace").strip().partition(":")
            if name == "data":
                chunk = bisect_left(before, at) - 1
                last = chunks[chunk][0] + at - before[chunk]
                yield data.strip(), self.pieces[bisect_left(arrived, last)][0]

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of events."""
        return self.body.startswith((b"data:", b"event:", b":"))
