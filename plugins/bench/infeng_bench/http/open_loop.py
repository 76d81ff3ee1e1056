"""A client over HTTP that sends when a request is due, whatever became of those before, and is light.

One thread, epoll, and bytes that were made beforehand; of what comes in return a head's length and marks are looked
for, and nothing is decoded: on the cores that serve, a client that parses would be measured with the server. Latencies
count from when a request was due, so that a client, or a server, that is late hides nothing. Connections stay open and
are used again; as many are opened as there are requests in flight.
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

from infeng_bench.http.closed_loop import END, PIECE, Address
from infeng_bench.peers import PeerError
from infeng_bench.stats.summary import percentile
from infeng_core.api.servers import shorten_slice

FRAME = b"data: "  # begins each event of a stream
TAIL = 512  # bytes of an answer that are kept, from its end: usage stands there
MOST_FILES = 1 << 16
AT_ONCE = 8  # requests that are late and sent before answers are looked at

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)")
_IN_CHUNKS = -1


@dataclass(frozen=True, slots=True)
class Due:
    """A request that is to be sent ``at`` seconds after the beginning."""

    at: float
    request: bytes
    place: int = 0  # the caller's number for it


@dataclass(slots=True, eq=False)
class Reply:
    """What became of a request; moments are seconds after the beginning, NaN for what never was."""

    due: Due
    sent: float = math.nan
    status: int = 0  # of HTTP; 0 where there was no answer
    pieces: list[float] = field(default_factory=list)  # when frames came; of an answer in one piece, when it ended
    frames: int = 0  # how many came: several may come at once
    ended: float = math.nan
    is_whole: bool = False
    tail: bytes = b""  # the last bytes of the body

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return not math.isnan(self.ended)


@dataclass(slots=True, eq=False)
class _Connection:
    link: socket.socket
    reply: Reply | None = None
    uses: int = 0
    head: bytes = b""
    left: int = 0  # bytes of the body that are still to come, or _IN_CHUNKS
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Effort:
    """What the client itself took."""

    cpu_share: float  # processor time of its thread over time that passed: of one core
    lag_p99: float  # seconds by which requests were sent later than they were due


class Client:
    """Sends requests, and takes in what comes while ``pump`` runs. A context manager."""

    def __init__(self, name: str, address: Address, timeout: float) -> None:
        """Ask ``address``. name: for errors. timeout: seconds without a byte after which it has failed."""
        self._name, self._address, self._timeout = name, address, timeout
        self._epoll = select.epoll()  # the first file, whose number select(2) can take
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

    def run(
        self, dues: Sequence[Due], ended: Callable[[Reply], object] = lambda reply: None
    ) -> tuple[list[Reply], Effort]:
        """Send all requests, in the order of their times, and return what became of each, and what that took.

        The beginning is now. ended: called after each. Raises PeerError where nothing comes for too long.
        """
        replies: list[Reply] = []
        with _like_another_machine():
            cpu, self._begin = time.thread_time(), time.perf_counter()
            self._run(deque(dues), replies, ended)
            share = (time.thread_time() - cpu) / self.now()
        lags = [reply.sent - reply.due.at for reply in replies]
        return replies, Effort(share, percentile(lags, 0.99) if lags else 0.0)

    def _run(self, coming: deque[Due], replies: list[Reply], ended: Callable[[Reply], object]) -> None:
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
                    ended(reply)
            if self.now() > heard + self._timeout:
                raise self._silent()

    def ask(self, request: bytes) -> Reply:
        """Send one request now."""
        return self.send(Due(self.now(), request))

    def send(self, due: Due) -> Reply:
        """Send a request now; raises PeerError where no connection can be opened."""
        reply = Reply(due)
        self._send(self._idle.pop() if self._idle else self._connected(), reply)
        return reply

    def drop(self, reply: Reply) -> None:
        """Leave: close the connection on which an answer comes."""
        for connection in list(self._open.values()):
            if connection.reply is reply:
                self._close(connection)
                reply.ended = self.now()

    def until(self, is_so: Callable[[], bool]) -> None:
        """Take in what comes until ``is_so``; raises PeerError where nothing comes for too long."""
        heard = time.perf_counter()
        while not is_so():
            if self.pump(self._timeout):
                heard = time.perf_counter()
            elif time.perf_counter() > heard + self._timeout:
                raise self._silent()

    def whole(self, request: bytes) -> Reply:
        """Send a request and wait for its whole answer; raises PeerError for any other than 200."""
        reply = self.ask(request)
        self.until(lambda: reply.is_over)
        if reply.status != 200 or not reply.is_whole:
            said = reply.tail.decode(errors="replace")
            raise PeerError(self._name, f"answered {reply.status}: {said!r}", "look at its log")
        return reply

    # -------------------------------------------------------------------------------------------------- receiving ---

    def pump(self, wait: float) -> list[Reply]:
        """Take in what is there, or comes first within ``wait`` seconds; return whose it is."""
        if wait > 0:  # to the microsecond: epoll waits for whole milliseconds
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
                self._send(self._connected(), reply)  # the server had closed it when the request came
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
        if count := data.count(FRAME):
            reply.frames += count
            reply.pieces.append(now)
        reply.tail = data[-TAIL:] if len(data) >= TAIL else (reply.tail + data)[-TAIL:]
        if connection.left != _IN_CHUNKS:
            connection.left -= len(data)

    # ------------------------------------------------------------------------------------------------ connections ---

    def _send(self, connection: _Connection, reply: Reply) -> None:
        connection.reply = reply
        connection.uses += 1
        reply.sent = self.now()
        with contextlib.suppress(ConnectionError):  # reading will tell
            connection.link.sendall(reply.due.request)

    def _connected(self) -> _Connection:
        try:
            made = self._address.connect(self._timeout)
            made.settimeout(None)  # epoll says when there is something: no poll(2) before each call
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
    """Let this thread collect no garbage and come in as soon as something is there for it, though others serve here."""
    gc.collect()
    gc.disable()
    shorten_slice()
    try:
        yield
    finally:
        shorten_slice(0.0)
        gc.enable()


def _head(connection: _Connection, reply: Reply, data: bytes) -> bytes:
    """Read the head of an answer, once all of it is there, and return what is behind it."""
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
    """Let this process have as many connections as it may need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
