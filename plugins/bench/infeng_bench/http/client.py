"""A client of a server that takes little CPU time, because it runs on the server's cores.

One thread, epoll, requests serialized beforehand, and no parsing of answers beyond the head and the marks of frames
before all have come. Latencies count from the moment at which a request was due, so they include the delays of a late
client. Connections are kept open and reused; there are as many as requests in flight.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import resource
import select
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

from infeng_inspect.api import shorten_slice

from infeng_bench.http.answer import Answer
from infeng_bench.http.wire import Address, Wire
from infeng_bench.load.place import Place
from infeng_bench.load.requests import Job, Reply
from infeng_bench.processes import PeerError

PIECE = 1 << 16  # bytes read at a time
MOST_FILES = 1 << 16
VOCAB = 256  # bound of the prompts' ids: every vocabulary has these
CONTEXT = 2048  # positions of a request, if the server does not say how many


@dataclass(frozen=True)
class Look(Job):
    """A GET of a path."""

    path: str = ""


@dataclass(slots=True, eq=False)
class _Connection:
    link: socket.socket
    answer: Answer | None = None
    uses: int = 0


class Client(Place):
    """Sends requests and receives answers while ``pump`` runs. A context manager."""

    at_once = 8

    def __init__(
        self, name: str, address: Address, wire: Wire, timeout: float, vocab: int = VOCAB, context: int = CONTEXT
    ) -> None:
        """Prepare to send requests to ``address``; other arguments as in ``Place``, seconds without a byte."""
        super().__init__(name, vocab, context, timeout)
        self.address, self._wire = address, wire
        self._epoll = select.epoll()  # opened first: select(2) needs a low file number
        self._open: dict[int, _Connection] = {}
        self._idle: list[_Connection] = []
        self._unread: list[Answer] = []
        _raise_open_files()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *of_error: object) -> None:
        for connection in list(self._open.values()):
            self._close(connection)
        self._epoll.close()

    def error(self, why: str) -> PeerError:
        """Return the error to raise."""
        return PeerError(self.name, why, "look at its log")

    def connect(self, count: int) -> None:
        """Open ``count`` connections before they are needed; raises OSError."""
        self._idle += [self._connected() for _ in range(count)]

    # ---------------------------------------------------------------------------------------------------- sending ---

    def prepared(self, job: Job) -> bytes:
        """Return the bytes of a request."""
        return self.address.look(job.path) if isinstance(job, Look) else self.address.request(self._wire, job)

    def send(self, reply: Reply, made: bytes) -> None:
        """Send a request."""
        try:
            self._send(self._idle.pop() if self._idle else self._connected(), Answer(reply, made))
        except OSError as error:
            reply.sent = self.now()
            reply.fail(type(error).__name__, reply.sent)

    def drop(self, reply: Reply) -> None:
        """Disconnect: close the connection of an answer."""
        for connection in list(self._open.values()):
            if connection.answer is not None and connection.answer.reply is reply:
                self._close(connection)
                reply.fail("dropped", self.now())

    def running(self) -> int:
        """Return how many requests the server says that run."""
        reply = Reply(Look(self.now(), (), 0, path=self._wire.running))
        self.send(reply, self.prepared(reply.job))
        self.until(lambda: reply.is_over)
        body = next((one.body for one in self._unread if one.reply is reply), b"")
        self.settle()
        self.check([reply])
        return int(json.loads(body)["running"])

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Reduce this thread's delays on cores that it shares with the server: no garbage collection, a short slice."""
        gc.collect()
        gc.disable()
        shorten_slice()
        try:
            yield
        finally:
            shorten_slice(0.0)
            gc.enable()

    # -------------------------------------------------------------------------------------------------- receiving ---

    def pump(self, wait: float) -> list[Reply]:
        """Receive bytes, waiting at most ``wait`` seconds for the first; return the answers that got some."""
        if wait > 0:  # select waits to the microsecond, epoll for whole milliseconds
            select.select([self._epoll], [], [], None if math.isinf(wait) else wait)
        heard = []
        for number, _ in self._epoll.poll(0):
            connection = self._open.get(number)
            if connection is not None and (reply := self._receive(connection)) is not None:
                heard.append(reply)
        return heard

    def settle(self) -> None:
        """Receive what has come already, and read the answers that have ended."""
        self.pump(0)
        for answer in self._unread:
            self._wire.read(answer.reply, answer)
        self._unread.clear()

    def _receive(self, connection: _Connection) -> Reply | None:
        answer = connection.answer
        try:
            data = connection.link.recv(PIECE)
            while isinstance(connection.link, ssl.SSLSocket) and connection.link.pending():
                data += connection.link.recv(PIECE)
        except OSError:
            data = b""
        now = self.now()
        if answer is None or not data:
            self._close(connection)
            if answer is not None and connection.uses > 1 and not answer.has_begun:
                self._again(answer)  # the server closed it before the request arrived
            elif answer is not None:
                answer.is_whole = answer.ends_with_connection
                self._over(answer, now)
            return None if answer is None else answer.reply
        body = answer.add(data, now)
        reply = answer.reply
        if count := body.count(self._wire.mark):
            reply.count += count
            reply.times.append(now)
        if answer.is_whole:
            self._over(answer, now)
            connection.answer = None
            if answer.closes:
                self._close(connection)
            else:
                self._idle.append(connection)
        return reply

    def _over(self, answer: Answer, now: float) -> None:
        answer.reply.ended = now
        if not answer.reply.times:
            answer.reply.times.append(now)
        self._unread.append(answer)

    # ------------------------------------------------------------------------------------------------ connections ---

    def _send(self, connection: _Connection, answer: Answer) -> None:
        connection.answer = answer
        connection.uses += 1
        if math.isnan(answer.reply.sent):
            answer.reply.sent = self.now()
        with contextlib.suppress(ConnectionError):  # the next read reports it
            connection.link.sendall(answer.request)

    def _again(self, answer: Answer) -> None:
        try:
            self._send(self._connected(), answer)
        except OSError as error:
            answer.reply.fail(type(error).__name__, self.now())

    def _connected(self) -> _Connection:
        made = self.address.connect(self.timeout)
        made.settimeout(None)  # a timeout would cost a poll(2) before each call
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


def _raise_open_files() -> None:
    """Raise the limit of open files to MOST_FILES, or as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
