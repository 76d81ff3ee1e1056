"""The client that sends when requests are due: what it makes of answers, connections and times."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from infeng_bench.http.client import Client, Due
from infeng_bench.http.wire import Address
from infeng_bench.peers import PeerError

STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nfull"
REQUEST = b"GET / HTTP/1.1\r\n\r\n"
END = b"\r\n0\r\n\r\n"

Answer = Callable[[int], Sequence[bytes | float]]
"""Of the number of a request on its connection: pieces, and pauses in seconds. None of it: the connection closes."""


@pytest.fixture
def serving() -> Iterator[Callable[[Answer], tuple[Address, list[int]]]]:
    """Return a function that starts a server, and the list of its connections' numbers of requests."""
    listeners = []

    def start(answer: Answer) -> tuple[Address, list[int]]:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        counts: list[int] = []

        def serve(connection: socket.socket, place: int) -> None:
            with connection:
                while connection.recv(1 << 16):
                    counts[place] += 1
                    pieces = answer(counts[place])
                    for piece in pieces:
                        if isinstance(piece, float):
                            time.sleep(piece)
                        else:
                            connection.sendall(piece)
                    if not pieces or pieces[-1] == b"":
                        return

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                counts.append(0)
                threading.Thread(target=serve, args=(connection, len(counts) - 1), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return Address("127.0.0.1", listener.getsockname()[1]), counts

    yield start
    for listener in listeners:
        listener.close()


def client_of(address: Address, timeout: float = 5.0) -> Client:
    return Client("it", address, timeout)


def test_requests_are_sent_when_due_regardless_of_other_requests(serving: Any) -> None:
    address, counts = serving(lambda number: [0.15, REFUSAL])
    ended: list[Any] = []
    with client_of(address) as client:
        replies, effort = client.run([Due(0.02 * k, REQUEST, k) for k in range(5)], ended.append)
        assert len(counts) == 5, "none had an answer when the last was due"
        client.run([Due(0.0, REQUEST) for _ in range(5)])
        assert counts == [2] * 5, "connections are used again"
    assert [reply.due.place for reply in replies] == list(range(5))
    assert {id(reply) for reply in ended} == {id(reply) for reply in replies}
    for reply in replies:
        assert (reply.status, reply.is_whole, reply.tail) == (503, True, b"full")
        assert reply.due.at <= reply.sent < reply.due.at + 0.1
        assert 0.15 <= reply.ended - reply.due.at < 1
        assert reply.pieces == [reply.ended]
    assert 0 <= effort.cpu_share < 1
    assert 0 <= effort.lag_p99 < 0.1


def test_frame_times_are_kept_and_an_answer_ends_with_its_last_chunk(serving: Any) -> None:
    pieces = [STREAM[:20], 0.01, STREAM[20:] + b"7\r\ndata: a", 0.03, b"e\r\ndata: bdata: c\r\n0\r", 0.01, b"\n\r\n"]
    address, _ = serving(lambda number: pieces)
    with client_of(address) as client:
        reply = client.whole(REQUEST)
    assert (reply.status, reply.frames, len(reply.pieces)) == (200, 3, 2)
    assert reply.pieces[1] - reply.pieces[0] >= 0.02
    assert reply.ended > reply.pieces[1]


def test_a_request_is_sent_again_after_the_server_closed_its_connection(serving: Any) -> None:
    address, counts = serving(lambda number: [REFUSAL] if number == 1 else [])
    with client_of(address) as client:
        for _ in range(3):
            [reply], _ = client.run([Due(0.0, REQUEST)])
            assert reply.status == 503
    assert counts == [2, 2, 1]


@pytest.mark.parametrize(("pieces", "status"), [([b""], 0), ([STREAM + b"7\r\ndata: a", b""], 200)])
def test_a_truncated_answer_is_finished_and_incomplete(serving: Any, pieces: list[bytes], status: int) -> None:
    address, _ = serving(lambda number: pieces)
    with client_of(address) as client:
        [reply], _ = client.run([Due(0.0, REQUEST)])
        assert (reply.status, reply.is_over, reply.is_whole) == (status, True, False)
        with pytest.raises(PeerError, match=f"answered {status}"):
            client.whole(REQUEST)


def test_a_dropped_request_gets_no_more_events_and_others_continue(serving: Any) -> None:
    address, _ = serving(lambda number: [STREAM + b"7\r\ndata: a", 0.05, b"7\r\ndata: b" + END])
    with client_of(address) as client:
        left, stays = client.ask(REQUEST), client.ask(REQUEST)
        client.until(lambda: left.frames > 0 and stays.frames > 0)
        client.drop(left)
        client.until(lambda: stays.is_over)
    assert (left.frames, left.is_whole) == (1, False)
    assert (stays.frames, stays.is_whole) == (2, True)


def test_a_silent_server_is_an_error(serving: Any) -> None:
    address, _ = serving(lambda number: [0.5, REFUSAL])
    with client_of(address, timeout=0.05) as client:
        with pytest.raises(PeerError, match=r"not a byte in 0\.05 s"):
            client.run([Due(0.0, REQUEST)])
        with pytest.raises(PeerError, match="not a byte"):
            client.whole(REQUEST)
