"""The requests and the streamed answers of a server, and its address."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from infeng_bench.load.serving import Job


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
