"""One call on its way to a replica: the bytes that are sent, and the attempts until one replica answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from infeng_serve.api.hosting import Call

from infeng_ray.fleet import TOKEN_HEADER, Fleet, Replica
from infeng_ray.upstream import Head, LostError, Upstream

ATTEMPTS = 3
"""Replicas that a call tries: one that is lost or full before the answer begins is followed by the next."""

HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"transfer-encoding", b"upgrade"}
)  # fmt: skip
"""Headers that concern one connection and are not passed on (RFC 9110, 7.6.1)."""

_OWN = HOP | {b"host", b"content-length", b"content-encoding", b"expect", b"last-event-id", TOKEN_HEADER}
_ANSWERS = HOP | {b"date"}


@dataclass(slots=True)
class Forward:
    """A call as replicas get it."""

    method: str
    target: bytes
    """Path and query."""
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""

    @staticmethod
    def of(call: Call, body: bytes) -> Forward:
        """Return a client's call; ``body`` is decompressed."""
        target = call.scope.get("raw_path") or call.path.encode("utf-8")
        if query := call.scope.get("query_string"):
            target += b"?" + query
        headers = [(name, value) for name, value in call.scope["headers"] if name not in _OWN]
        if last := call.headers.get(b"last-event-id"):
            headers.append((b"last-event-id", last))
        return Forward(call.method, target, headers, body)

    def bytes_for(self, authority: bytes) -> bytes:
        """Return the request to the replica at ``authority``."""
        lines = [b"%b %b HTTP/1.1" % (self.method.encode("ascii"), self.target), b"host: " + authority]
        lines += [name + b": " + value for name, value in self.headers]
        if self.body or self.method == "POST":
            lines.append(b"content-length: %d" % len(self.body))
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body

    def with_headers(self, names: Iterable[tuple[bytes, bytes]], target: bytes) -> Forward:
        """Return a GET of ``target`` by the same caller with further headers."""
        kept = [(name, value) for name, value in self.headers if name in (b"authorization", b"x-request-id")]
        return Forward("GET", target, [*kept, *names])


def passed_on(head: Head) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer that the client gets."""
    return [(name, value) for name, value in head.headers if name not in _ANSWERS]


@dataclass(slots=True)
class Answering:
    """A replica that answers a call. ``close`` must be called."""

    replica: Replica
    upstream: Upstream
    head: Head
    fleet: Fleet = field(repr=False)
    is_closed: bool = False

    @property
    def is_refusal(self) -> bool:
        """Whether the replica has no room, loads or drains, so that another one may answer."""
        return self.head.status == 503 and bool(self.head.get(b"retry-after"))

    @property
    def is_stream(self) -> bool:
        """Whether the answer is a stream of events."""
        return self.head.get(b"content-type").startswith(b"text/event-stream")

    def close(self) -> None:
        """Count the call no more; an answer that was not read to its end is broken off."""
        if not self.is_closed:
            self.is_closed = True
            self.fleet.router.end(self.replica.name)
            self.replica.pool.give(self.upstream)


class Attempt:
    """An attempt under way, which a client's leaving breaks off."""

    def __init__(self, fleet: Fleet) -> None:
        """Try replicas of ``fleet``."""
        self.fleet = fleet
        self.upstream: Upstream | None = None
        self.is_gone = False
        """Whether the client has left."""

    def leave(self) -> None:
        """The client has left: break the replica's work off."""
        self.is_gone = True
        if self.upstream is not None:
            self.upstream.close()

    async def ask(self, replica: Replica, forward: Forward) -> Answering:
        """Return a replica's answer, counted as a call in flight; raises LostError and shuts a replica that is gone."""
        router, is_counted = self.fleet.router, replica.is_open
        if is_counted:
            router.begin(replica.name)
        try:
            return await self._asked(replica, forward)
        except BaseException as error:
            router.end(replica.name)
            if isinstance(error, LostError) and not self.is_gone:
                self.fleet.shut(replica, str(error))
            raise

    async def _asked(self, replica: Replica, forward: Forward) -> Answering:
        request = forward.bytes_for(replica.pool.authority)
        for fresh in (False, True):
            upstream = self.upstream = await replica.pool.take(fresh=fresh)
            if self.is_gone:
                upstream.close()
                raise LostError("the client has left")
            try:
                return Answering(replica, upstream, await upstream.ask(request), self.fleet)
            except BaseException as error:
                upstream.close()
                # a kept connection may have been closed by the replica before this call came
                if not (isinstance(error, LostError) and upstream.is_used) or self.is_gone:
                    raise
        raise LostError("the connection was closed")
