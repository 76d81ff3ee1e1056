"""Heads of calls: their length to the byte, the header Host, and bodies that are packed."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator

import pytest
from serve_parts import Running, connected, read_until, running

MOST = 4096


@pytest.fixture(scope="module")
def strict() -> Iterator[Running]:
    """A server that takes heads of 4,096 bytes, and bodies of 100,000."""
    with running(max_head=MOST, max_body=100_000) as found:
        yield found


def head(size: int) -> bytes:
    """Return a head of ``size`` bytes, of many short headers."""
    lines = [b"GET /health HTTP/1.1", b"host: localhost"]
    while (left := size - sum(len(line) + 2 for line in lines) - 2) > 100:
        lines.append(b"x-%04d: %s" % (len(lines), b"a" * 30))
    lines.append(b"x-last: " + b"a" * (left - len(b"x-last: \r\n")))
    return b"\r\n".join([*lines, b"", b""])


def answered(served: Running, *pieces: bytes) -> bytes:
    """Return the first line of the answer to bytes that are sent one piece after the other."""
    client = connected(served.address)
    for piece in pieces:
        client.sendall(piece)
        if len(pieces) > 1:
            time.sleep(0.03)
    data = read_until(client, b"\r\n")
    client.close()
    return data.split(b"\r\n")[0]


@pytest.mark.parametrize("cut", [None, 10, 2000, -3, -1])
def test_a_head_may_have_exactly_max_head_bytes(strict: Running, cut: int | None):
    for size, status in ((MOST - 1, b"200"), (MOST, b"200"), (MOST + 1, b"431"), (10 * MOST, b"431")):
        whole = head(size)
        assert len(whole) == size
        pieces = (whole,) if cut is None else (whole[:cut], whole[cut:])
        assert answered(strict, *pieces).split()[1] == status, (size, cut)


def test_a_body_does_not_count_towards_the_head(strict: Running):
    body = json.dumps({"prompt": "a " * 300, "max_tokens": 1, "user": "x" * 20_000}).encode()
    begun = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert answered(strict, begun + body).split()[1] == b"200"
    assert answered(strict, begun[:-2], begun[-2:] + body[:5000], body[5000:]).split()[1] == b"200"


@pytest.mark.parametrize("pieces", [(b"zz\r\n\r\n",), (b"2\r\n{}", b"\r\nzz\r\n")])
def test_a_body_whose_chunks_are_malformed_is_refused(strict: Running, pieces: tuple[bytes, ...]):
    begun = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    begun += b"transfer-encoding: chunked\r\n\r\n"
    assert answered(strict, begun + pieces[0], *pieces[1:]).split()[1] == b"400"
    assert answered(strict, begun, *pieces).split()[1] == b"400"
    assert answered(strict, head(200)).split()[1] == b"200"


def test_a_long_pipelined_head_is_refused_too(strict: Running):
    client = connected(strict.address)
    client.sendall(head(200) + head(3 * MOST))
    data = b""
    while part := client.recv(65536):
        data += part
    client.close()
    assert data.count(b"HTTP/1.1 200") <= 1


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nHOST: localhost\r\n\r\n", b"200"),
        (b"GET /health HTTP/1.0\r\n\r\n", b"200"),
    ],
)
def test_a_call_must_have_one_host_header(strict: Running, lines: bytes, status: bytes):
    assert answered(strict, lines).split()[1] == status


def test_a_compressed_body_is_decompressed(strict: Running):
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}).encode()
    plain = strict.ask("/v1/completions", body)
    packed = strict.ask("/v1/completions", gzip.compress(body), content_encoding="gzip")
    assert (plain.status, packed.status) == (200, 200)
    assert plain.json["choices"] == packed.json["choices"]


def test_a_compressed_body_is_bounded_by_its_decompressed_size(strict: Running):
    """16,000,000 bytes are 16 KB when they are packed; of them no more are unpacked than may be."""
    bomb = strict.ask("/v1/completions", gzip.compress(b" " * 16_000_000), content_encoding="gzip")
    assert (bomb.status, bomb.json["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"{}", "gzip", 400),
        (gzip.compress(b"{}", mtime=0)[:-4], "gzip", 400),
        (gzip.compress(b"{}", mtime=0) + b"more", "gzip", 400),
        (b"{}", "br", 415),
        (b"{}", "gzip, gzip", 415),
    ],
)
def test_an_invalid_compressed_body_is_refused(strict: Running, body: bytes, encoding: str, status: int):
    reply = strict.ask("/v1/completions", body, content_encoding=encoding)
    assert reply.status == status
    if status == 415:
        assert reply.headers["accept-encoding"] == "gzip, identity"


def test_bodies_of_adapter_routes_have_a_small_bound():
    with running() as served:
        reply = served.ask("/v1/load_lora_adapter", {"lora_name": "x" * (1 << 20), "lora_path": "a"})
        assert (reply.status, reply.json["error"]["code"]) == (413, "body_too_large")
