"""Connections to replicas: HTTP/1.1, one call at a time, kept for the next one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 5.0
"""Seconds within which a replica must accept a connection."""

MOST_IDLE = 64
"""Open connections to a replica that wait for a call."""

MOST_QUEUED = 1 << 18
"""Bytes of an answer that wait for a slow client, after which the replica is read no further."""

MOST_HEAD = 1 << 18
"""Bytes of the head of a replica's answer."""


class LostError(Exception):
    """The replica cannot be reached, or broke off."""


@dataclass(slots=True)
class Head:
    """Status and headers of an answer."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    def get(self, name: bytes) -> bytes:
        """Return a header's value, b"" if it is absent; ``name`` is in lower case."""
        return next((value for known, value in self.headers if known == name), b"")


class Upstream(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        """Made by ``Pool``."""
        self.is_used = False
        """Whether an earlier call has used the connection, so that the replica may have closed it meanwhile."""
        self.at_once: Callable[[bytes], bool] | None = None
        """Called with a part of the body as it arrives; False: it cannot be sent now and is queued."""
        self._transport: Any = None
        self._parser: Any = None
        self._head = Head()
        self._head_bytes = 0
        self._has_head = self._is_complete = self._is_lost = self._is_paused = False
        self._parts: list[bytes] = []
        self._queued = 0
        self._news = asyncio.Event()

    @property
    def is_reusable(self) -> bool:
        """Whether another call may follow."""
        return self._is_complete and not self._is_lost and bool(self._parser.should_keep_alive())

    @property
    def is_lost(self) -> bool:
        """Whether the connection is closed."""
        return self._is_lost

    async def ask(self, request: bytes) -> Head:
        """Send a call and return the head of its answer; raises LostError."""
        self._parser = httptools.HttpResponseParser(self)
        self._head, self._head_bytes = Head(), 0
        self._has_head = self._is_complete = False
        self._parts, self._queued, self.at_once = [], 0, None
        self._transport.write(request)
        while not self._has_head:
            await self._wait()
        return self._head

    async def take(self) -> bytes:
        """Return the next part of the body, b"" at its end; raises LostError if the replica broke off."""
        while not self._parts:
            if self._is_complete:
                return b""
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._queued = [], 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    async def body(self, most: int) -> bytes:
        """Return the whole body; raises LostError, also for more than ``most`` bytes."""
        parts: list[bytes] = []
        size = 0
        while data := await self.take():
            parts.append(data)
            size += len(data)
            if size > most:
                raise LostError(f"an answer of more than {most} bytes")
        return b"".join(parts)

    def close(self) -> None:
        """Close the connection, by which a replica learns that nobody wants the rest of an answer."""
        if self._transport is not None:
            self._transport.abort()
        self._is_lost = True
        self._news.set()

    async def _wait(self) -> None:
        if self._is_lost:
            raise LostError("the connection was closed")
        self._news.clear()
        await self._news.wait()

    # -------------------------------------------------------------------------------------- of asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse what the replica sends; a connection that sends no HTTP, or unasked, is closed."""
        if self._parser is None or self._is_complete:
            self.close()
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
        if not self._has_head and self._head_bytes > MOST_HEAD:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake who waits."""
        self._is_lost = True
        self._news.set()

    # ------------------------------------------------------------------------------------------- of the parser ---

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._head.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is there; that of an informational answer (1xx) is skipped."""
        status = self._parser.get_status_code()
        if status < 200:
            self._head = Head()
            return
        self._head.status = status
        self._has_head = True
        self._news.set()

    def on_body(self, data: bytes) -> None:
        """Hand a part on at once, or queue it."""
        if self.at_once is not None and not self._parts and self.at_once(data):
            return
        self._parts.append(data)
        self._queued += len(data)
        self._news.set()
        if self._queued > MOST_QUEUED and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if self._has_head:
            self._is_complete = True
            self._news.set()


class Pool:
    """The connections to one replica."""

    def __init__(self, url: str) -> None:
        """url: ``http://HOST:PORT``."""
        parts = urlsplit(url)
        self.url = url
        self.host, self.port = str(parts.hostname), int(parts.port or 80)
        self.authority = parts.netloc.encode("ascii")
        """Host and port, for the header Host."""
        self._idle: list[Upstream] = []

    async def take(self, *, fresh: bool = False) -> Upstream:
        """Return an open connection, a new one if ``fresh``; raises LostError."""
        while self._idle and not fresh:
            found = self._idle.pop()
            if not found.is_lost:
                found.is_used = True
                return found
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, upstream = await loop.create_connection(Upstream, self.host, self.port)
        except (OSError, TimeoutError) as error:
            raise LostError(f"{self.url}: {error}") from error
        return upstream

    def give(self, upstream: Upstream) -> None:
        """Keep a connection for the next call, or close it if it cannot serve one."""
        if upstream.is_reusable and len(self._idle) < MOST_IDLE:
            upstream.at_once = None
            self._idle.append(upstream)
        else:
            upstream.close()

    def close(self) -> None:
        """Close those that wait."""
        for upstream in self._idle:
            upstream.close()
        self._idle.clear()

    async def fetch(self, request: bytes, seconds: float, most: int = 1 << 24) -> tuple[Head, bytes]:
        """Return a small answer; raises LostError, also after ``seconds``."""
        upstream = await self.take(fresh=False)
        try:
            async with asyncio.timeout(seconds):
                try:
                    head = await upstream.ask(request)
                except LostError:
                    if not upstream.is_used:
                        raise
                    upstream = await self.take(fresh=True)
                    head = await upstream.ask(request)
                body = await upstream.body(most)
        except TimeoutError as error:
            upstream.close()
            raise LostError(f"{self.url}: no answer within {seconds:g} s") from error
        except BaseException:
            with contextlib.suppress(Exception):
                upstream.close()
            raise
        self.give(upstream)
        return head, body
