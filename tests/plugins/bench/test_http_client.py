"""The client that sends when requests are due: what it makes of answers, connections and times."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from infeng_bench.http.client import Client, Look
from infeng_bench.http.wire import Address, Wire
from infeng_bench.processes import PeerError

STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nfull"
WIRE = Wire("/", lambda job: {}, b"data: ", lambda event: None, "/ready")
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
    return Client("it", address, WIRE, timeout)


def look(at: float = 0.0) -> Look:
    return Look(at, (), 0, path="/")


@pytest.mark.slow
def test_requests_are_sent_when_due_regardless_of_other_requests(serving: Any) -> None:
    address, counts = serving(lambda number: [0.15, REFUSAL])
    ended: list[Any] = []
    with client_of(address) as client:
        replies, effort = client.run([look(0.02 * k) for k in range(5)], done=lambda: ended.append(None))
        assert len(counts) == 5, "none had an answer when the last was due"
        client.run([look() for _ in range(5)])
        assert counts == [2] * 5, "connections are used again"
    assert len(ended) == 5
    for reply in replies:
        assert reply.failure == "http 503"
        assert reply.job.at <= reply.sent < reply.job.at + 0.1
        assert 0.15 <= reply.ended - reply.job.at < 1
        assert reply.refused == reply.ended - reply.job.at
        assert reply.times == [reply.ended]
    assert 0 <= effort.cpu_share < 1
    assert 0 <= effort.lag_p99 < 0.1


def test_frame_times_are_kept_and_an_answer_ends_with_its_last_chunk(serving: Any) -> None:
    pieces = [STREAM[:20], 0.01, STREAM[20:] + b"7\r\ndata: a", 0.03, b"e\r\ndata: bdata: c\r\n0\r", 0.01, b"\n\r\n"]
    address, _ = serving(lambda number: pieces)
    with client_of(address) as client:
        reply = client.whole(look())
    assert (reply.failure, reply.count, len(reply.times)) == ("", 3, 2)
    assert reply.times[1] - reply.times[0] >= 0.02
    assert reply.ended >= reply.times[1]  # the last bytes may come together


@pytest.mark.slow
def test_a_request_is_sent_again_after_the_server_closed_its_connection(serving: Any) -> None:
    address, counts = serving(lambda number: [REFUSAL] if number == 1 else [])
    with client_of(address) as client:
        for _ in range(3):
            [reply], _ = client.run([look()])
            assert reply.failure == "http 503"
    assert counts == [2, 2, 1]


@pytest.mark.parametrize(("pieces", "why"), [([b""], "no answer"), ([STREAM + b"7\r\ndata: a", b""], "cut short")])
def test_a_truncated_answer_is_finished_and_incomplete(serving: Any, pieces: list[bytes], why: str) -> None:
    address, _ = serving(lambda number: pieces)
    with client_of(address) as client:
        [reply], _ = client.run([look()])
        assert (reply.failure, reply.is_over, reply.is_done) == (why, True, False)
        with pytest.raises(PeerError, match=f"a request was not answered: {why}"):
            client.whole(look())


def test_a_dropped_request_gets_no_more_events_and_others_continue(serving: Any) -> None:
    address, _ = serving(lambda number: [STREAM + b"7\r\ndata: a", 0.05, b"7\r\ndata: b" + END])
    with client_of(address) as client:
        left, stays = client.ask(look()), client.ask(look())
        client.until(lambda: left.count > 0 and stays.count > 0)
        client.drop(left)
        client.until(lambda: stays.is_over)
        client.settle()
    assert (left.count, left.is_done) == (1, False)
    assert (stays.count, stays.is_done) == (2, True)


def test_a_silent_server_is_an_error(serving: Any) -> None:
    address, _ = serving(lambda number: [0.5, REFUSAL])
    with client_of(address, timeout=0.05) as client:
        with pytest.raises(PeerError, match=r"no answer in 0\.05 s"):
            client.run([look()])
        with pytest.raises(PeerError, match="no answer"):
            client.whole(look())
