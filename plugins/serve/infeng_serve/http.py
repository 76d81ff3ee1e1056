"""One HTTP call: reads its head and body, bounded in size and time, and sends the response."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
import zlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from infeng_serve.auth import NOBODY, Caller
from infeng_serve.failures import GoneError
from infeng_serve.protocol.answer import EVENTS
from infeng_serve.protocol.errors import ApiError, ErrorForm, openai_form

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"

LINGER_SECONDS = 1.0
"""Seconds for which the rest of an oversized body is read, so that its sender gets to read the error."""

_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")
_TYPE_JSON = re.compile(rb"application/([\w.+-]+\+)?json")
_NOT_JSON = "the content type is not application/json; send the header `Content-Type: application/json`"


def own_id() -> str:
    """Return a globally unique id for a call."""
    return uuid.uuid4().hex


def request_id(given: bytes, own: str) -> str:
    """Return the id that the client gave if it is harmless, else the server's own."""
    return given.decode("ascii") if _ID.fullmatch(given) else own


def too_large(most: int) -> ApiError:
    """Return the error for a body of more than ``most`` bytes; it also closes the connection."""
    return ApiError(
        413, f"The body has more than {most} bytes.", code="body_too_large", headers={"connection": "close"}
    )


def unzipped(body: bytes, most: int) -> bytes:
    """Decompress a gzip file; raises ApiError 413 after ``most`` bytes of output, or 400 for an invalid file.

    Takes some milliseconds a megabyte, without the GIL.
    """
    reader = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        found = reader.decompress(body, most + 1)
    except zlib.error as error:
        raise ApiError(400, f"The body is not gzip: {error}.", code="invalid_gzip") from None
    if len(found) > most:
        raise too_large(most)
    if not reader.eof or reader.unused_data:
        why = "it ends too early" if not reader.eof else "something follows it"
        raise ApiError(400, f"The body is not one gzip file: {why}.", code="invalid_gzip")
    return found


class Presence:
    """Whether a call's client is still connected. Thread-safe."""

    def __init__(self) -> None:
        """Be there."""
        self.is_left = False

    def leave(self) -> None:
        """Note that the client has left."""
        self.is_left = True

    def check(self) -> None:
        """Raise GoneError if the client has left. Long work calls this in between."""
        if self.is_left:
            raise GoneError


class Call:
    """One call, from its head to the end of its answer."""

    __slots__ = (
        "_pieces",
        "_receive",
        "_send",
        "_watcher",
        "arrived",
        "caller",
        "error_form",
        "extra",
        "headers",
        "id",
        "is_over",
        "is_started",
        "method",
        "own_id",
        "path",
        "scope",
        "wall",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wrap the arguments of an ASGI application."""
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.arrived = time.perf_counter()
        self.wall = time.time()
        given = self.headers.get(b"x-request-id", b"")
        self.own_id = own_id()
        """The server's unique id, under which the journal keeps the call; ``id`` need not be unique."""
        self.id = request_id(given, self.own_id)
        """The client's X-Request-Id if it has at most 128 characters, all harmless; else the server's id."""
        self.caller: Caller = NOBODY
        self.extra: list[tuple[bytes, bytes]] = [(b"x-request-id", self.id.encode("ascii"))]
        """Headers of every response to this call."""
        self.error_form: ErrorForm = openai_form
        """Returns the body of an error response to this call."""
        self.is_started = False
        self.is_over = False
        self._pieces = scope.get("state", {}).get("pieces")
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None

    @property
    def client(self) -> str:
        """The client's address."""
        found = self.scope.get("client")
        return str(found[0]) if found else ""

    def header(self, name: bytes) -> str:
        """Return a header's value, "" if it is absent; ``name`` is in lower case."""
        return self.headers.get(name, b"").decode("latin-1")

    # ------------------------------------------------------------------------------------------------- its body ---

    async def body(self, most: int, seconds: float) -> bytes:
        """Read the JSON body, at most ``most`` bytes within ``seconds``; it may be compressed (``is_gzip``).

        Raises ApiError 413, 408, 415 or 400, and GoneError if the client leaves meanwhile.
        """
        self._check_type()
        length = self.headers.get(b"content-length", b"0")
        parts: list[bytes] = []
        size = int(length) if length.isdigit() and len(length) < 20 else 0
        try:
            async with asyncio.timeout(seconds):
                more = size <= most
                size = 0 if more else size
                while more:
                    part, more = await self._part()
                    parts.append(part)
                    size += len(part)
                    more = more and size <= most
        except TimeoutError:
            why = f"The body did not arrive within {seconds:g} seconds."
            raise ApiError(408, why, headers={"connection": "close"}) from None
        if size > most:
            await self._linger()
            raise too_large(most)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def is_gzip(self) -> bool:
        """Whether the body is compressed with gzip."""
        return self.headers.get(b"content-encoding", b"").strip().lower() in (b"gzip", b"x-gzip")

    def _check_type(self) -> None:
        """Refuse content types that a cross-origin page may send without a preflight, and unknown encodings."""
        encoding = self.headers.get(b"content-encoding", b"").strip().lower()
        if encoding not in (b"", b"identity") and not self.is_gzip:
            why = "The content encoding is not gzip; send the body as it is, or as gzip."
            raise ApiError(415, why, headers={"accept-encoding": "gzip, identity", "connection": "close"})
        given = self.headers.get(b"content-type")
        if given is None and b"origin" not in self.headers:
            return
        if given is None or not _TYPE_JSON.match(given.lower()):
            raise ApiError(415, _NOT_JSON[0].upper() + _NOT_JSON[1:] + ".", headers={"connection": "close"})

    async def _part(self) -> tuple[bytes, bool]:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        return message.get("body", b""), message.get("more_body", False)

    async def _linger(self) -> None:
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while (await self._part())[1]:
                    pass
        except TimeoutError:
            pass

    def watch(self, gone: Callable[[], object]) -> None:
        """Call ``gone`` if the client leaves before the answer is complete. The body must have been read."""
        self._watcher = asyncio.get_running_loop().create_task(self._until_gone(gone))

    async def _until_gone(self, gone: Callable[[], object]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.is_over:
            gone()

    # ----------------------------------------------------------------------------------------------- its answer ---

    async def respond(self, status: int, body: bytes = b"", *, kind: bytes = JSON, headers: Headers = ()) -> None:
        """Send a complete response."""
        head = [*self.extra, *headers]
        if status not in (204, 304):
            head += [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        self.is_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        self.is_over = True
        await self._send({"type": "http.response.body", "body": body})

    async def fail(self, error: ApiError) -> None:
        """Send an error response."""
        headers = [(name.encode("ascii"), value.encode("latin-1")) for name, value in error.headers.items()]
        await self.respond(error.status, self.error_form(error), headers=headers)

    async def begin(self, kind: bytes = EVENTS) -> None:
        """Send the head of a stream. kind: its content type."""
        head = [*self.extra, (b"content-type", kind), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await self.start(200, head)

    async def start(self, status: int, headers: Headers) -> None:
        """Send a head of these headers alone; ``write`` sends what follows."""
        self.is_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send a part of a stream; waits for a slow client."""
        self.is_over = is_last
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})

    @property
    def keeps_up(self) -> bool:
        """Whether ``write_now`` may be called: the stream has begun, and its client reads it."""
        return self._pieces is not None and self._pieces.is_open

    def write_now(self, data: bytes) -> None:
        """Send a nonempty part of a stream at once; ``keeps_up`` must be true."""
        self._pieces.write(data)

    def close(self) -> None:
        """Cancel the task that waits for a disconnect."""
        self.is_over = True
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
