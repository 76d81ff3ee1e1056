"""Clients that are slow, rude or many."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from serve_parts import Running, connected, holds_little, posted, read_until, running, slowed, stepping, until

BODY = {"prompt": "Once upon a time", "max_tokens": 4}


@pytest.fixture(scope="module")
def strict() -> Iterator[Running]:
    """A server that waits for nobody."""
    with running(head_timeout=0.3, write_timeout=0.5, keep_alive=0.3, max_head=4096, max_connections=20) as found:
        yield found


def ended(client: socket.socket) -> bytes:
    """Return what comes until the server closes."""
    data = b""
    try:
        while part := client.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    client.close()
    return data


def test_a_head_that_arrives_too_slowly_is_refused(strict: Running):
    client = connected(strict.address)
    client.sendall(b"GET /health HTTP/1.1\r\n")

    def is_refused() -> bool:
        """Send one line more, which is in time for a line."""
        with contextlib.suppress(OSError):
            client.sendall(b"x: 1\r\n")
        return bool(select.select([client], [], [], 0.02)[0])

    assert until(is_refused)
    assert ended(client).startswith(b"HTTP/1.1 408")


def test_idle_connections_are_closed_also_between_two_calls(strict: Running):
    silent, used = connected(strict.address), connected(strict.address)
    used.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert b'"ok"' in read_until(used, b"}")
    assert ended(silent) == ended(used) == b""


def test_a_head_is_bounded(strict: Running):
    client = connected(strict.address)
    client.sendall(b"GET /health HTTP/1.1\r\n")
    time.sleep(0.05)
    client.sendall(b"x" * 5000)
    assert ended(client).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    "noise", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\0" * 64]
)
def test_data_that_is_not_http_is_400_in_the_usual_form(strict: Running, noise: bytes):
    client = connected(strict.address)
    client.sendall(noise)
    data = ended(client)
    assert data.startswith(b"HTTP/1.1 400")
    assert b'"invalid_request_error"' in data


def test_one_connection_too_many_is_refused_and_others_go_on(strict: Running):
    kept = [connected(strict.address) for _ in range(20)]
    assert ended(connected(strict.address)).startswith(b"HTTP/1.1 503")
    for client in kept:
        client.close()
    assert until(lambda: not strict.server._state.connections)
    assert strict.ask("/health").status == 200


def test_a_client_that_never_reads_is_dropped_and_its_blocks_freed(strict: Running):
    holds_little(strict)
    client = connected(strict.address, receives=2048)
    client.sendall(posted("/tiny", {**BODY, "max_tokens": 150, "n": 16, "ignore_eos": True, "stream": True}))
    assert until(lambda: strict.server.service.limits.calls)
    assert until(lambda: not strict.server.service.limits.calls, 30)
    assert until(lambda: strict.blocks_in_use() == 0)
    assert b"[DONE]" not in ended(client)


def test_a_half_closed_connection_cancels_its_call(served: Running):
    """As for most servers: a client that closes its sending side wants nothing more."""
    client = connected(served.address)
    with slowed(served.engine, 0.02):
        client.sendall(posted("/tiny", {**BODY, "max_tokens": 400, "ignore_eos": True, "stream": True}))
        read_until(client, b'"text"')
        client.shutdown(socket.SHUT_WR)
        assert until(lambda: not served.server.service.limits.calls)
    assert until(lambda: served.blocks_in_use() == 0)
    ended(client)


def test_calls_on_one_connection_are_answered_in_their_order(served: Running):
    client = connected(served.address)
    client.sendall(b"".join(posted("/tiny", BODY, f"x-request-id: number-{number}") for number in range(5)))
    data = b""
    while data.count(b'"finish_reasons"') < 5:
        data += client.recv(65536)
    places = [data.index(b'"id":"number-%d"' % number) for number in range(5)]
    assert places == sorted(places)
    client.close()
    assert until(lambda: not served.server.service.limits.calls)


def test_a_disconnect_behind_pipelined_calls_frees_everything(served: Running):
    client = connected(served.address)
    long = {**BODY, "max_tokens": 300, "ignore_eos": True, "stream": True}
    client.sendall(b"".join(posted("/tiny", long) for _ in range(3)))
    read_until(client, b'"text"')
    client.close()
    assert until(lambda: not served.server.service.limits.calls)
    assert until(lambda: served.blocks_in_use() == 0)


WHOLE = {**BODY, "max_tokens": 400, "ignore_eos": True}
LARGE = 100_000
"""More than is read of a call that waits, but not so much that the end of half a connection cannot come through."""
LEAVES = {
    "alone": ([posted("/tiny", WHOLE)], []),
    "before another call": ([posted("/tiny", WHOLE) * 2], []),
    "before calls that came later": ([posted("/tiny", WHOLE)], [posted("/tiny", WHOLE)] * 2),
    "before one that is large": ([posted("/tiny", WHOLE)], [posted("/tiny", {**WHOLE, "prompt": "x" * LARGE})]),
    "behind another call": ([posted("/tiny", BODY) + posted("/tiny", WHOLE)], []),
    "between two calls": ([posted("/tiny", BODY) + posted("/tiny", WHOLE) * 2], []),
}
"""What a client sends until a long answer is being made, and what after that."""


@pytest.mark.parametrize("how", ["close", "half", "reset"])
@pytest.mark.parametrize("place", LEAVES)
def test_a_client_that_leaves_a_whole_answer_frees_its_blocks_at_once(served: Running, place: str, how: str):
    before, after = LEAVES[place]
    client = connected(served.address)
    with stepping(served.engine, 0.05) as steps:
        for data in before:
            client.sendall(data)
        if "behind" in place or "between" in place:
            read_until(client, b'"finish_reasons"')
        assert until(lambda: served.blocks_in_use() > 0)
        for data in after:
            client.sendall(data)
            time.sleep(0.02)
        steps.allow(0)
        if how == "half":
            client.shutdown(socket.SHUT_WR)
        else:
            if how == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        assert until(lambda: not served.server.service.limits.calls)  # however long that takes to be noticed
        steps.allow(2)
        assert until(lambda: served.blocks_in_use() == 0)
    client.close()
    assert until(lambda: not served.server._state.connections)


def test_a_client_that_leaves_with_its_body_half_sent_is_not_an_error(served: Running):
    for _ in range(5):
        client = connected(served.address)
        client.sendall(posted("/tiny", BODY)[:-5])
        client.close()
    assert until(lambda: not served.server.service.limits.calls)
    assert served.ask("/tiny", BODY).status == 200


@pytest.mark.slow
def test_a_thousand_idle_connections_slow_no_call(served: Running):
    idle = [connected(served.address) for _ in range(1000)]
    for client in idle[::2]:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
    for client in idle[::2]:
        assert b'"ok"' in read_until(client, b"}")
    begin = time.monotonic()
    for _ in range(20):
        assert served.ask("/tiny", BODY).status == 200
        assert served.ask("/health").status == 200
    assert time.monotonic() - begin < 20
    assert len(served.server._state.connections) >= 1000
    for client in idle:
        client.close()
    assert until(lambda: not served.server._state.connections)


@pytest.mark.slow
def test_two_hundred_slow_readers_delay_no_call_and_get_their_texts(served: Running):
    long = {**BODY, "max_tokens": 100, "ignore_eos": True}
    whole = served.ask("/tiny", long).json["texts"][0]
    clients = [connected(served.address, receives=2048) for _ in range(200)]
    for client in clients:
        client.sendall(posted("/tiny", {**long, "stream": True}))
    found: list[str] = []

    def read(client: socket.socket) -> None:
        data = b""
        while b"[DONE]" not in data:
            time.sleep(0.02)
            part = client.recv(512)
            if not part:
                break
            data += part
        pieces = data.split(b'"text":"')[1:]
        found.append(b"".join(piece.partition(b'","of"')[0] for piece in pieces).decode())

    threads = [threading.Thread(target=read, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    latencies = []
    while any(thread.is_alive() for thread in threads):
        begin = time.monotonic()
        assert served.ask("/health").status == 200
        latencies.append(time.monotonic() - begin)
        time.sleep(0.05)
    assert len(found) == 200
    import json

    assert {json.loads(f'"{text}"') for text in found} == {whole}
    assert sorted(latencies)[len(latencies) // 2] < 2
    for client in clients:
        client.close()
    assert until(lambda: served.blocks_in_use() == 0)
