"""Frames that a relay passes on: whole ones, whatever pieces they come in."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from infeng_ray.relay import Relay, failed, lost
from infeng_ray.upstream import LostError

STREAM = b"".join(b'id: call/%d\ndata: {"n": %d}\n\n' % (k, k) for k in range(40)) + b"data: [DONE]\n\n"


class Client:
    """The client's end of a call."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.keeps_up = True

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        self.got.append(data)

    def write_now(self, data: bytes) -> None:
        self.got.append(data)


class Source:
    """A replica's answer in given pieces, after which it ends or breaks off."""

    at_once: Any = None

    def __init__(self, pieces: list[bytes], *, breaks: bool = False) -> None:
        self._pieces, self._breaks = list(pieces), breaks

    async def take(self) -> bytes:
        while self._pieces:
            data = self._pieces.pop(0)
            if not self.at_once(data):
                return data
        if self._breaks:
            raise LostError("it broke")
        return b""


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    ends = sorted(rng.sample(range(1, len(data)), 30))
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_pieces_become_whole_frames(seed: int):
    rng = random.Random(seed)
    client: Any = Client()
    relay = Relay(client)
    client.keeps_up = bool(seed % 2)
    source: Any = Source(cut(STREAM, rng))
    asyncio.run(relay.run(source))
    assert b"".join(client.got) == STREAM
    assert all(data.endswith(b"\n\n") for data in client.got)


@pytest.mark.parametrize("length", range(1, 300, 7))
def test_a_stream_that_breaks_ends_after_a_whole_frame_whose_id_is_known(length: int):
    client: Any = Client()
    relay = Relay(client)
    source: Any = Source([STREAM[:length]], breaks=True)
    with pytest.raises(LostError):
        asyncio.run(relay.run(source))
    sent = b"".join(client.got)
    assert STREAM.startswith(sent) and (not sent or sent.endswith(b"\n\n")) and length - len(sent) < 40
    count = sent.count(b"\n\n")
    assert relay.last_id == (f"call/{count - 1}" if count else "") and relay.has_sent == bool(count)


def test_a_comment_is_passed_on_at_once():
    client: Any = Client()
    relay = Relay(client)
    source: Any = Source([b"id: call/1\ndata: 1\n\n", b": keep-alive\n", b": keep-alive\n"], breaks=True)
    with pytest.raises(LostError):
        asyncio.run(relay.run(source))
    assert client.got[1:] == [b": keep-alive\n"] * 2 and relay.last_id == "call/1"


def test_an_answer_that_ends_within_a_frame_is_lost():
    relay = Relay(Client())  # type: ignore[arg-type]
    source: Any = Source([b"data: 1\n\ndata"])
    with pytest.raises(LostError):
        asyncio.run(relay.run(source))


def test_the_end_of_a_lost_stream_has_the_form_of_its_route():
    assert failed("/v1/completions", lost()).endswith(b"data: [DONE]\n\n")
    assert failed("/v1/responses", lost()).startswith(b'event: error\ndata: {"type":"error","code":"replica_lost"')
