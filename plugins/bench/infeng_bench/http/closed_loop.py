"""Closed-loop clients that stream answers over HTTP and take little CPU time: raw sockets, one thread, no parsing.

The client searches the received bytes for the mark of a frame with text and for the end of the body, and reads the
number of tokens from the last frame of a complete answer. Parsing each frame in Python would cost more than a small
model's token costs the server, on the same cores.
"""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infeng_bench.load.serving import Job, Trace
from infeng_bench.peers import PeerError

END = b"\r\n0\r\n\r\n"  # the last chunk of a chunked body, after the end of the previous chunk
PIECE = 1 << 16  # bytes read at a time
SHOWN = 200  # characters of an unexpected answer in an error


@dataclass(frozen=True)
class Wire:
    """The requests and frames of one kind of server."""

    path: str
    body: Callable[[Job], Mapping[str, Any]]  # returns the JSON of a request
    mark: bytes  # occurs in every frame with text and in no other
    count: re.Pattern[bytes]  # its last match in an answer is the number of new tokens
    ready: str  # a path that answers 200 once the server takes requests
    headers: str = ""  # further header lines, each with its line end


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    def connect(self, timeout: float) -> socket.socket:
        """Return an open connection; raises OSError."""
        made = socket.create_connection((self.host, self.port), timeout)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def request(self, wire: Wire, job: Job) -> bytes:
        """Return the bytes of a request."""
        body = json.dumps(wire.body(job), separators=(",", ":")).encode()
        head = f"POST {wire.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
        head += wire.headers
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def look(self, path: str) -> bytes:
        """Return the bytes of a GET."""
        return f"GET {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n\r\n".encode()


@dataclass(eq=False)
class _Client:
    """A connection and the answer that it waits for."""

    connection: socket.socket
    trace: Trace
    request: bytes
    is_reused: bool  # whether it carried an answer before; a server may close such a connection at any time
    parts: list[bytes] = field(default_factory=list)
    last: bytes = b""  # the last bytes received


def drive(
    name: str, address: Address, wire: Wire, jobs: Sequence[Job], clients: int, timeout: float
) -> tuple[list[Trace], float, float]:
    """Send ``jobs``, at most ``clients`` at a time; each ended answer starts the next request.

    Returns the traces, with the times at which text came; the seconds from the first request to the last answer; and
    the CPU seconds of this thread. timeout: seconds without a byte. name: for errors. Raises PeerError if an answer is
    not a stream or lacks tokens.
    """
    loop = _Loop(name, address, wire, jobs, timeout)
    try:
        return loop.run(clients)
    except OSError as error:
        raise PeerError(name, f"its connection failed ({error})", "look at its log") from error
    finally:
        loop.close()


class _Loop:
    def __init__(self, name: str, address: Address, wire: Wire, jobs: Sequence[Job], timeout: float) -> None:
        self._name, self._address, self._wire, self._timeout = name, address, wire, timeout
        self._traces = [Trace(job) for job in jobs]
        self._waiting = deque((trace, address.request(wire, trace.job)) for trace in self._traces)
        self._left = len(jobs)
        self._selector = selectors.DefaultSelector()
        self._begin = 0.0

    def run(self, clients: int) -> tuple[list[Trace], float, float]:
        """Return traces, seconds, and this thread's CPU seconds."""
        opened = [self._address.connect(self._timeout) for _ in range(min(clients, len(self._waiting)))]
        for connection in opened:
            self._selector.register(connection, selectors.EVENT_READ)
        cpu, self._begin = time.thread_time(), time.perf_counter()
        for connection in opened:
            self._send(connection, *self._waiting.popleft(), is_reused=False)
        while self._left:
            ready = self._selector.select(self._timeout)
            if not ready:
                raise PeerError(self._name, f"not a byte in {self._timeout:g} s", "look at its log")
            for key, _ in ready:
                self._receive(key.data)
        return self._traces, time.perf_counter() - self._begin, time.thread_time() - cpu

    def close(self) -> None:
        """Close every connection."""
        for key in list(self._selector.get_map().values()):
            with contextlib.suppress(OSError):
                key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _send(self, connection: socket.socket, trace: Trace, request: bytes, *, is_reused: bool) -> None:
        trace.admitted = trace.admitted or time.perf_counter() - self._begin
        self._selector.modify(connection, selectors.EVENT_READ, _Client(connection, trace, request, is_reused))
        with contextlib.suppress(ConnectionError):  # the next read reports it
            connection.sendall(request)

    def _receive(self, client: _Client) -> None:
        try:
            data = client.connection.recv(PIECE)
        except ConnectionError:
            data = b""
        if not client.parts and data and not data.startswith(b"HTTP/1.1 200"):
            raise PeerError(self._name, f"answered {data[:SHOWN].decode(errors='replace')!r}", "look at its log")
        if not data:
            if client.parts or not client.is_reused:
                raise PeerError(self._name, "an answer was cut short", "look at its log")
            self._send(self._anew(client.connection), client.trace, client.request, is_reused=False)
            return
        if self._wire.mark in data:
            client.trace.tokens.append(time.perf_counter() - self._begin)
        client.parts.append(data)
        client.last = (client.last + data)[-len(END) :] if len(data) < len(END) else data[-len(END) :]
        if client.last == END:
            self._end(client)

    def _end(self, client: _Client) -> None:
        answer = b"".join(client.parts)
        found, wanted = self._wire.count.findall(answer), client.trace.job.new
        if not found or int(found[-1]) != wanted or not client.trace.tokens:
            why = f"gave {found[-1].decode() if found else 'no'} tokens where {wanted} were asked for"
            raise PeerError(self._name, why, "look at its log")
        self._left -= 1
        if not self._waiting:  # the connection is not needed again
            self._selector.unregister(client.connection)
            client.connection.close()
            return
        connection, is_reused = client.connection, True
        if b"\r\nconnection: close\r\n" in answer[: answer.find(b"\r\n\r\n") + 4].lower():
            connection, is_reused = self._anew(connection), False
        self._send(connection, *self._waiting.popleft(), is_reused=is_reused)

    def _anew(self, connection: socket.socket) -> socket.socket:
        """Replace a connection that the server has closed."""
        self._selector.unregister(connection)
        connection.close()
        made = self._address.connect(self._timeout)
        self._selector.register(made, selectors.EVENT_READ)
        return made
