"""Connections: uvicorn's protocol with bounds on their number, on heads, and on clients that stall."""

from __future__ import annotations

import asyncio
import select
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from infeng_serve.protocol.errors import ApiError


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on connections; times in seconds."""

    connections: int
    head: int
    """Bytes."""
    head_timeout: float
    write_timeout: float


LOOK_SECONDS = 0.1
"""Seconds between checks whether the client of a paused connection has left."""

HEAD_END = b"\r\n\r\n"

_LEFT = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class RefusedError(Exception):
    """Stops the parser for a call that was refused already."""


class Flow(FlowControl):
    """Flow control that detects a client's disconnect even while reading is paused, as with pipelined calls."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Control ``transport``."""
        super().__init__(transport)
        self._client = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._poll = select.poll()
        opened = transport.get_extra_info("socket")
        self._poll.register(opened.fileno(), select.POLLRDHUP)

    def pause_reading(self) -> None:
        """Pause reading and begin to poll for a disconnect."""
        super().pause_reading()
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def resume_reading(self) -> None:
        """Read again."""
        self.forget()
        super().resume_reading()

    def forget(self) -> None:
        """Stop polling."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if any(events & _LEFT for _, events in self._poll.poll(0)):
            self._timer = None
            self._client.abort()
        else:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)


class Pieces:
    """Writes chunks of a streamed answer synchronously, without ASGI's coroutines, while its client keeps up."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        """Write to the answer of ``cycle``."""
        self._cycle = cycle

    @property
    def is_open(self) -> bool:
        """Whether the chunked answer has begun and nothing of it is buffered."""
        cycle = self._cycle
        return bool(cycle.chunked_encoding) and not (
            cycle.flow.write_paused or cycle.disconnected or cycle.response_complete
        )

    def write(self, data: bytes) -> None:
        """Write a nonempty chunk; ``is_open`` must be true."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class Connection(HttpToolsProtocol):
    """One client connection."""

    def __init__(self, bounds: Bounds, config: Config, state: ServerState, loop: asyncio.AbstractEventLoop) -> None:
        """Serve the app of ``config``; ``state`` is that of all connections."""
        super().__init__(config, state, {}, loop)
        self._bounds = bounds
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._in_head = True
        self._head_bytes = 0  # raw bytes of the current head, counted where it begins at the start of a read
        self._head_tail = b""  # its last bytes, which may hold the beginning of its end marker
        self._parsed_bytes = 0  # bytes of the head's parsed parts
        self._messages = 0
        self._answered: RequestResponseCycle | None = None
        """The call being answered, or the last one; uvicorn's ``cycle`` is the last one received."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the head, or refuse the connection if there are too many."""
        super().connection_made(transport)
        self.flow = Flow(transport, self.loop)
        if len(self.connections) > self._bounds.connections:
            self._refuse(503, "There are too many connections.")
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers and notify the call that is being answered."""
        self._disarm()
        self.resume_writing()
        if isinstance(self.flow, Flow):
            self.flow.forget()
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        cycle.scope["state"]["pieces"] = Pieces(cycle)
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        """Parse the data, unless the head is too long."""
        if self.transport.is_closing():
            return
        if self._in_head:
            self._count_head(data)
        if self._head_bytes > self._bounds.head:
            self._refuse_head()
        else:
            super().data_received(data)

    def _count_head(self, data: bytes) -> None:
        """Count the bytes of ``data`` that belong to the current head."""
        joined = self._head_tail + data
        end = joined.find(HEAD_END)
        self._head_bytes += len(data) if end < 0 else end + len(HEAD_END) - len(self._head_tail)
        self._head_tail = joined[1 - len(HEAD_END) :] if end < 0 else b""

    def on_message_begin(self) -> None:
        """Start the timer for a head."""
        super().on_message_begin()
        self._messages += 1
        self._parsed_bytes = 0
        if self._head_timer is None:
            self._arm()

    def on_headers_complete(self) -> None:
        """Check a complete head and stop its timer."""
        self._in_head = False
        self._disarm()
        self._check_host()
        super().on_headers_complete()

    def on_url(self, url: bytes) -> None:
        """Count and store a part of the request target."""
        self._count_parsed(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count and store a header."""
        self._count_parsed(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_message_complete(self) -> None:
        """Note that the body is complete: another head may follow."""
        self._in_head, self._head_bytes, self._head_tail = True, 0, b""
        super().on_message_complete()

    def _count_parsed(self, size: int) -> None:
        """Count a parsed part of a head; the raw bytes of a pipelined head cannot be counted."""
        self._parsed_bytes += size
        if self._parsed_bytes > self._bounds.head:
            self._refuse_head()
            raise RefusedError

    def _check_host(self) -> None:
        """Refuse an HTTP/1.1 call without a Host header and any call with several (RFC 9112, 3.2)."""
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() != "1.0"):
            self._refuse(400, f"The header Host is there {hosts} times; send it once.")
            raise RefusedError

    def _refuse_head(self) -> None:
        self._refuse(431, f"The head has more than {self._bounds.head} bytes.")

    def pause_writing(self) -> None:
        """Start the timer for a client that reads too slowly or not at all."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self._bounds.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer: the client reads again."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self.flow is not None:
            super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer data that is not HTTP."""
        self._refuse(400, msg)

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(self._bounds.head_timeout, self._give_up)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if self._messages or self._head_bytes:
            self._refuse(408, f"The head did not arrive within {self._bounds.head_timeout:g} seconds.")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Answer instead of the app, and close the connection. A call whose body is still being read is ended."""
        self._disarm()
        if self.transport.is_closing():
            return
        cycle = self.cycle
        is_unread = cycle is not None and cycle.more_body and not (cycle.response_started or self.pipeline)
        if is_unread:
            cycle.disconnected = True  # its app writes nothing after this answer
        if cycle is None or cycle.response_complete or is_unread:  # else an earlier call is still being answered
            body = ApiError(status, message).body()
            phrase = HTTPStatus(status).phrase
            head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode("ascii") + b"connection: close\r\n\r\n" + body)
        self.transport.close()


def config_of(app: Any, *, keep_alive: float, backlog: int, cert: str | None, key: str | None) -> Config:
    """Return uvicorn's configuration for ``app``."""
    config = Config(
        app,
        loop="none",
        http=Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=backlog,
        timeout_keep_alive=keep_alive,  # type: ignore[arg-type]  # uvicorn passes it to call_later, which takes fractions
        ssl_certfile=cert,
        ssl_keyfile=key,
    )
    config.load()
    return config
