"""The requests and the answers of a kind of server, and its address."""

from __future__ import annotations

import json
import math
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from infeng_bench.load.requests import Job, Reply
from infeng_core.api import UsageError

if TYPE_CHECKING:
    from infeng_bench.http.answer import Answer

REFUSED = (429, 503)


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int
    path: str = ""  # before the path of each request
    is_encrypted: bool = False

    @staticmethod
    def of(url: str) -> Address:
        """Read ``http://HOST:PORT``, which may end in /v1; raises UsageError for a URL that is not HTTP."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if host is None or parts.scheme not in ("http", "https"):
            raise UsageError(f"--url {url!r}", "is no HTTP server's", "give http://HOST:PORT")
        is_encrypted = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return Address(host, port or (443 if is_encrypted else 80), path, is_encrypted)

    def connect(self, timeout: float) -> socket.socket:
        """Return an open connection; raises OSError."""
        made = socket.create_connection((self.host, self.port), None if math.isinf(timeout) else timeout)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.is_encrypted:
            return ssl.create_default_context().wrap_socket(made, server_hostname=self.host)
        return made

    def request(self, wire: Wire, job: Job) -> bytes:
        """Return the bytes of a request."""
        body = json.dumps(wire.body(job), separators=(",", ":")).encode()
        headers = f"Content-Type: application/json\r\n{wire.headers(job)}Content-Length: {len(body)}\r\n"
        return self._head("POST", wire.path, headers) + body

    def look(self, path: str, headers: str = "") -> bytes:
        """Return the bytes of a GET."""
        return self._head("GET", path, headers)

    def _head(self, method: str, path: str, headers: str) -> bytes:
        where = f"Host: {self.host}:{self.port}\r\n"
        return f"{method} {self.path}{path} HTTP/1.1\r\n{where}{headers}\r\n".encode()


Count = tuple[int, int]  # new tokens, and tokens of the prompt that were in the cache


@dataclass(frozen=True)
class Wire:
    """The requests and answers of one kind of server."""

    path: str
    body: Callable[[Job], Mapping[str, Any]]  # returns the JSON of a request
    mark: bytes  # occurs in every frame with text and in no other
    count: Callable[[Mapping[str, Any]], Count | None]  # of an event's JSON, if it tells
    ready: str  # a path that answers 200 once the server takes requests
    running: str = ""  # a path whose JSON has the number of running requests, ``running``
    headers: Callable[[Job], str] = field(default=lambda job: "")  # further header lines, each with its line end
    has_text: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether an event has text, for servers whose frames have no ``mark`` that is known: their times are of events."""
    end: str = ""  # the last event, if it is no JSON

    def read(self, reply: Reply, answer: Answer) -> None:
        """Complete what became of a request by the answer that has come. A wrong number of tokens is a failure."""
        if answer.status != 200:
            if answer.status in REFUSED:
                reply.refused = reply.ended - reply.job.at
            reply.failure = _reason(answer.body, f"http {answer.status}" if answer.status else "no answer")
            return
        if not answer.is_whole:
            reply.failure = "cut short"
        elif reply.job.new:
            self._events(reply, answer)

    def _events(self, reply: Reply, answer: Answer) -> None:
        told: Count | None = None
        times: list[float] = []
        has_ended = not self.end or not answer.is_stream
        for text, moment in answer.events():
            if text == self.end:
                has_ended = True
                break
            try:
                event = json.loads(text)
                told = self.count(event) or told
            except (ValueError, AttributeError):
                reply.failure = "not an event stream"
                return
            if "error" in event:
                reply.failure = _reason(text.encode(), "error")
                return
            if self.has_text is not None and self.has_text(event):
                times.append(moment)
        if self.has_text is not None:
            reply.times, told = times, told or (len(times), 0)
        if not has_ended:
            reply.failure = "stream cut short"
        elif not reply.times:
            reply.failure = "no token"
        else:
            reply.count, reply.cached = told or (0, 0)
            if self.has_text is None and reply.count != reply.job.new:
                reply.failure = f"gave {reply.count or 'no'} tokens where {reply.job.new} were asked for"


def _reason(body: bytes, otherwise: str) -> str:
    """Return the code or type of an error of OpenAI's API; ``otherwise`` if the body has neither."""
    try:
        error = json.loads(body)["error"]
        return str(error.get("code") or error.get("type") or otherwise)
    except (ValueError, KeyError, TypeError, AttributeError):
        return otherwise
