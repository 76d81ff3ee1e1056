"""An HTTP client that sends each request when it is due, whether earlier ones were answered or not.

It takes little CPU time, because it runs on the server's cores: one thread, epoll, requests serialized beforehand, and
no parsing of answers beyond the head and the marks of frames. Latencies count from the moment at which a request was
due, so they include the delays of a late client. Connections are kept open and reused; there are as many as requests
in flight.
"""

from __future__ import annotations

import contextlib
import gc
import math
import re
import resource
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from infeng_bench.http.wire import Address
from infeng_bench.peers import PeerError
from infeng_bench.stats.summary import percentile
from infeng_core.api.servers import shorten_slice

FRAME = b"data: "  # begins each event of a stream
END = b"\r\n0\r\n\r\n"  # the last chunk of a chunked body, after the end of the previous chunk
TAIL = 512  # bytes kept of an answer's end, which has the usage
PIECE = 1 << 16  # bytes read at a time
MOST_FILES = 1 << 16
AT_ONCE = 8  # overdue requests sent before answers are read

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)")
_IN_CHUNKS = -1


@dataclass(frozen=True, slots=True)
class Due:
    """A request and the time to send it, in seconds after the beginning."""

    at: float
    request: bytes
    place: int = 0  # the caller's number for it


@dataclass(slots=True, eq=False)
class Reply:
    """The answer to a request; times are seconds after the beginning, NaN for an event that did not happen."""

    due: Due
    sent: float = math.nan
    status: int = 0  # of HTTP; 0 without an answer
    pieces: list[float] = field(default_factory=list)  # arrival of marks; of an answer without marks, its end
    frames: int = 0  # marks; several may arrive at once
    ended: float = math.nan
    is_whole: bool = False
    tail: bytes = b""  # the last bytes of the body

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended."""
        return not math.isnan(self.ended)


@dataclass(slots=True, eq=False)
class _Connection:
    link: socket.socket
    reply: Reply | None = None
    uses: int = 0
    head: bytes = b""
    left: int = 0  # bytes of the body still to come, or _IN_CHUNKS
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Effort:
    """The cost and the delay of the client itself."""

    seconds: float  # from the beginning to the last answer
    cpu_seconds: float  # of its thread
    lag_p99: float  # seconds between a request's due time and its sending, 99th percentile

    @property
    def cpu_share(self) -> float:
        """CPU time over wall time."""
        return self.cpu_seconds / self.seconds


class Client:
    """Sends requests and receives answers while ``pump`` runs. A context manager."""

    def __init__(self, name: str, address: Address, timeout: float, *, mark: bytes = FRAME, kept: int = TAIL) -> None:
        """Prepare to send requests to ``address``.

        name: for errors. timeout: seconds without a byte until PeerError. mark: occurs once in each frame that counts.
        kept: most bytes of ``Reply.tail``.
        """
        self._name, self._address, self._timeout = name, address, timeout
        self._mark, self._kept = mark, kept
        self._epoll = select.epoll()  # opened first: select(2) needs a low file number
        self._open: dict[int, _Connection] = {}
        self._idle: list[_Connection] = []
        self._begin = time.perf_counter()
        _raise_open_files()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *of_error: object) -> None:
        for connection in list(self._open.values()):
            self._close(connection)
        self._epoll.close()

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.perf_counter() - self._begin

    # ---------------------------------------------------------------------------------------------------- sending ---

    def connect(self, count: int) -> None:
        """Open ``count`` connections before they are needed; raises PeerError."""
        self._idle += [self._connected() for _ in range(count)]

    def run(
        self, dues: Sequence[Due], ended: Callable[[Reply], Due | None] = lambda reply: None
    ) -> tuple[list[Reply], Effort]:
        """Send all requests, which are in order of time, and return the answers and the client's effort.

        The beginning is now. ended: called after each answer; returns a further request, which is sent next, or None.
        Raises PeerError after ``timeout`` without a byte.
        """
        replies: list[Reply] = []
        with _like_another_machine():
            cpu, self._begin = time.thread_time(), time.perf_counter()
            self._run(deque(dues), replies, ended)
            seconds, taken = self.now(), time.thread_time() - cpu
        lags = [reply.sent - reply.due.at for reply in replies]
        return replies, Effort(seconds, taken, percentile(lags, 0.99) if lags else 0.0)

    def _run(self, coming: deque[Due], replies: list[Reply], ended: Callable[[Reply], Due | None]) -> None:
        running: set[Reply] = set()
        heard = 0.0
        while coming or running:
            for _ in range(AT_ONCE):
                if not coming or coming[0].at > self.now():
                    break
                replies.append(self.send(coming.popleft()))
                running.add(replies[-1])
            wait = coming[0].at - self.now() if coming else self._timeout
            found = self.pump(min(wait, self._timeout))
            if found or not running:
                heard = self.now()
            for reply in found:
                if reply.is_over:
                    running.discard(reply)
                    if (following := ended(reply)) is not None:
                        coming.appendleft(following)
            if self.now() > heard + self._timeout:
                raise self._silent()

    def ask(self, request: bytes) -> Reply:
        """Send one request now."""
        return self.send(Due(self.now(), request))

    def send(self, due: Due) -> Reply:
        """Send a request now; raises PeerError if no connection can be opened."""
        reply = Reply(due)
        self._send(self._idle.pop() if self._idle else self._connected(), reply)
        return reply

    def drop(self, reply: Reply) -> None:
        """Disconnect: close the connection of an answer."""
        for connection in list(self._open.values()):
            if connection.reply is reply:
                self._close(connection)
                reply.ended = self.now()

    def until(self, is_so: Callable[[], bool]) -> None:
        """Receive until ``is_so()``; raises PeerError after ``timeout`` without a byte."""
        heard = time.perf_counter()
        while not is_so():
            if self.pump(self._timeout):
                heard = time.perf_counter()
            elif time.perf_counter() > heard + self._timeout:
                raise self._silent()

    def whole(self, request: bytes) -> Reply:
        """Send a request and return its whole answer; raises PeerError unless its status is 200."""
        reply = self.ask(request)
        self.until(lambda: reply.is_over)
        if reply.status != 200 or not reply.is_whole:
            said = reply.tail.decode(errors="replace")
            raise PeerError(self._name, f"answered {reply.status}: {said!r}", "look at its log")
        return reply

    # -------------------------------------------------------------------------------------------------- receiving ---

    def pump(self, wait: float) -> list[Reply]:
        """Receive bytes, waiting at most ``wait`` seconds for the first; return the answers that got some."""
        if wait > 0:  # select waits to the microsecond, epoll for whole milliseconds
            select.select([self._epoll], [], [], wait)
        heard = []
        for number, _ in self._epoll.poll(0):
            connection = self._open.get(number)
            if connection is not None and (reply := self._receive(connection)) is not None:
                heard.append(reply)
        return heard

    def _receive(self, connection: _Connection) -> Reply | None:
        reply = connection.reply
        try:
            data = connection.link.recv(PIECE)
        except OSError:
            data = b""
        if reply is None or not data:
            self._close(connection)
            if reply is not None and connection.uses > 1 and not reply.status and not connection.head:
                self._send(self._connected(), reply)  # the server closed it before the request arrived
            elif reply is not None:
                reply.ended = self.now()
            return reply
        now = self.now()
        if not reply.status:
            data = _head(connection, reply, data)
        if data:
            self._body(connection, reply, data, now)
        if reply.status and (reply.tail.endswith(END) if connection.left == _IN_CHUNKS else connection.left <= 0):
            reply.ended, reply.is_whole = now, True
            if not reply.frames:
                reply.pieces.append(now)
            connection.reply = None
            if connection.closes:
                self._close(connection)
            else:
                self._idle.append(connection)
        return reply

    def _body(self, connection: _Connection, reply: Reply, data: bytes, now: float) -> None:
        if count := data.count(self._mark):
            reply.frames += count
            reply.pieces.append(now)
        reply.tail = data[-self._kept :] if len(data) >= self._kept else (reply.tail + data)[-self._kept :]
        if connection.left != _IN_CHUNKS:
            connection.left -= len(data)

    # ------------------------------------------------------------------------------------------------ connections ---

    def _send(self, connection: _Connection, reply: Reply) -> None:
        connection.reply = reply
        connection.uses += 1
        if math.isnan(reply.sent):
            reply.sent = self.now()
        with contextlib.suppress(ConnectionError):  # the next read reports it
            connection.link.sendall(reply.due.request)

    def _connected(self) -> _Connection:
        try:
            made = self._address.connect(self._timeout)
            made.settimeout(None)  # a timeout would cost a poll(2) before each call
        except OSError as error:
            raise PeerError(self._name, f"no connection can be opened ({error})", "look at its log") from error
        connection = _Connection(made)
        self._open[made.fileno()] = connection
        self._epoll.register(made, select.EPOLLIN)
        return connection

    def _close(self, connection: _Connection) -> None:
        self._epoll.unregister(connection.link)
        del self._open[connection.link.fileno()]
        connection.link.close()
        if connection in self._idle:
            self._idle.remove(connection)

    def _silent(self) -> PeerError:
        return PeerError(self._name, f"not a byte in {self._timeout:g} s", "look at its log")


@contextlib.contextmanager
def _like_another_machine() -> Iterator[None]:
    """Reduce this thread's delays on cores that it shares with the server: no garbage collection, a short slice."""
    gc.collect()
    gc.disable()
    shorten_slice()
    try:
        yield
    finally:
        shorten_slice(0.0)
        gc.enable()


def _head(connection: _Connection, reply: Reply, data: bytes) -> bytes:
    """Parse the head of an answer once it is complete; return the bytes after it."""
    data = connection.head + data
    end = data.find(b"\r\n\r\n")
    if end < 0:
        connection.head = data
        return b""
    connection.head = b""
    head = data[:end].lower()
    reply.status = int(head[9:12])
    length = _LENGTH.search(head)
    connection.left = int(length[1]) if length else _IN_CHUNKS
    connection.closes = b"\r\nconnection: close" in head
    return data[end + 4 :]


def _raise_open_files() -> None:
    """Raise the limit of open files to MOST_FILES, or as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
