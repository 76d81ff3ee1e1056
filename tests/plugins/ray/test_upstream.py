"""Connections to replicas that send what no server should."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from infeng_ray.upstream import MOST_HEAD, Head, LostError, Pool

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def asked(*answers: bytes, seconds: float = 5.0, most: int = 1000) -> list[tuple[Head, bytes]]:
    """Return what a replica's answers are read as, each connection's calls in turn."""
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while left and await reader.readuntil(b"\r\n\r\n"):
            data = left.pop(0)
            writer.write(data)
            await writer.drain()
            if data != GOOD and data:
                writer.close()
                return
        await reader.read()

    async def run(call: Callable[[Pool], Awaitable[list[tuple[Head, bytes]]]]) -> list[tuple[Head, bytes]]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        pool = Pool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            return await call(pool)
        finally:
            pool.close()
            server.close()

    async def call(pool: Pool) -> list[tuple[Head, bytes]]:
        return [await pool.fetch(REQUEST, seconds, most) for _ in range(len(answers))]

    return asyncio.run(run(call))


def test_connections_are_kept_for_the_next_call():
    assert [(head.status, body) for head, body in asked(GOOD, GOOD, GOOD)] == [(200, b"ok")] * 3


def test_an_informational_answer_is_skipped():
    [(head, body)] = asked(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + GOOD)
    assert (head.status, body, head.get(b"link")) == (200, b"ok", b"")


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab",  # ends within its body
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n",  # within its head
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * (2 * MOST_HEAD),
        b"HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n" + b"x" * 2000,  # more than was asked for
    ],
)
def test_what_is_no_whole_answer_is_a_lost_replica(data: bytes):
    with pytest.raises(LostError):
        asked(data)


def test_a_replica_that_says_nothing_is_lost_after_its_time():
    with pytest.raises(LostError, match=r"no answer within 0\.2 s"):
        asked(b"", seconds=0.2)


def test_nobody_at_the_address_is_a_lost_replica():
    async def call() -> None:
        await Pool("http://127.0.0.1:9").take()

    with pytest.raises(LostError):
        asyncio.run(call())
