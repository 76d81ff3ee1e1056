"""By which names a server may be called: pages of strangers get at none without keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from infeng_serve.auth import Keys
from infeng_serve.host_header import Hosts
from infeng_serve.observers import Record
from infeng_serve.protocol.errors import ApiError
from serve_parts import Running, connected, read_until, running, slowed

from infeng_core.api import InfengError

LOCAL = ["127.0.0.1", "127.0.0.1:8000", "localhost", "LOCALHOST:1", "localhost.", "[::1]:8000", "[::1]",
         "app.localhost:8", "192.168.1.5:8000", "127.8.9.1", "0.0.0.0:80"]  # fmt: skip
STRANGE = ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "evillocalhost",
           "laptop", "", "::1", "a b", "user@localhost", "[evil.example]", "localhost:80:80", "http://localhost",
           "\xe9vil.example", "127.0.0.1\t.evil.example"]  # fmt: skip


class Turned:
    """An observer that keeps what was turned away."""

    def __init__(self) -> None:
        """Have seen none yet."""
        self.seen: list[tuple[int, str, str]] = []

    def accepted(self, record: Record) -> None:
        """Keep nothing."""

    def tokens(self, record: Record, new: int, now: float) -> None:
        """Keep nothing."""

    def ended(self, record: Record) -> None:
        """Keep nothing."""

    def rejected(self, record: Record, reason: str) -> None:
        """Keep the call."""
        self.seen.append((record.status, reason, record.route))


@pytest.fixture(scope="module")
def turned() -> Turned:
    """Who watches the server."""
    return Turned()


@pytest.fixture(scope="module")
def watched(turned: Turned) -> Iterator[Running]:
    """A server without keys, at a loopback address."""
    with running(watch=lambda model: (turned,)) as found:
        yield found


@pytest.mark.parametrize("host", LOCAL)
def test_addresses_and_localhost_are_answered(host: str):
    Hosts().check(host.encode())


@pytest.mark.parametrize("host", STRANGE)
def test_any_other_name_is_refused(host: str):
    with pytest.raises(ApiError) as caught:
        Hosts(["llm.example"]).check(host.encode("latin-1"))
    assert (caught.value.status, caught.value.code) == (403, "host_not_allowed")
    assert "--allowed-hosts" in caught.value.message


@pytest.mark.parametrize("path", ["/health", "/", "/page.js", "/v1/models", "/metrics", "/load", "/openapi.json",
                                  "/nothing", "/v1/streams/x"])  # fmt: skip
def test_a_rebound_host_name_reaches_no_route(watched: Running, turned: Turned, path: str):
    reply = watched.ask(path, host="evil.example:8000")
    assert (reply.status, reply.json["error"]["code"]) == (403, "host_not_allowed")
    assert reply.json["error"].keys() == {"message", "type", "param", "code"}
    assert turned.seen[-1] == (403, "forbidden", path)
    assert watched.ask(path, host=f"localhost:{watched.address[1]}").status != 403


def test_a_refused_name_computes_nothing(watched: Running):
    body = {"prompt": "x", "max_tokens": 1}
    with slowed(watched.engine, 0.0) as counted:
        assert watched.ask("/v1/completions", body, host="evil.example").status == 403
        assert counted.steps == 0
        assert watched.ask("/v1/completions", body).status == 200
        assert counted.steps > 0


def test_a_call_that_names_no_host_comes_from_no_browser(watched: Running):
    plain = connected(watched.address)
    plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
    assert read_until(plain, b"}").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("given", "host", "status"),
    [
        ({"allowed_hosts": ("llm.example",)}, "LLM.example.:8000", 200),
        ({"allowed_hosts": ("llm.example",)}, "evil.example", 403),
        ({"allowed_hosts": ("*",)}, "evil.example", 200),
        ({"host": "0.0.0.0"}, "llm.example", 200),
        ({"host": "0.0.0.0", "allowed_hosts": ("llm.example",)}, "llm.example", 200),
        ({"host": "0.0.0.0", "allowed_hosts": ("llm.example",)}, "evil.example", 403),
        ({"keys": Keys(["secret"])}, "evil.example", 200),
        ({"keys": Keys(["secret"]), "allowed_hosts": ("llm.example",)}, "evil.example", 200),
    ],
)
def test_host_names_are_configurable_and_not_checked_with_keys(given, host, status):
    with running(**given) as served:
        assert served.ask("/health", host=host).status == status


@pytest.mark.parametrize("name", ["", "http://llm.example", "a b", "llm.example/x"])
def test_an_invalid_allowed_host_is_an_error_at_the_start(name: str):
    with pytest.raises(InfengError, match="allowed_hosts"):
        Hosts([name])


def test_a_page_of_another_origin_can_neither_read_nor_call(watched: Running):
    """What browsers send without asking first is a GET, whose answer the page may not read, or is refused as 415."""
    strange = {"origin": "https://evil.example", "sec_fetch_site": "cross-site"}
    body = b'{"prompt": "x", "max_tokens": 1}'
    for kind in ("text/plain", "text/plain; charset=application/json", "application/x-www-form-urlencoded",
                 "multipart/form-data; boundary=x", ""):  # fmt: skip
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/tokenize",
                     "/detokenize", "/lora-adapters", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"):  # fmt: skip
            assert watched.ask(path, body, content_type=kind, **strange).status == 415, (path, kind)
    for path in ("/v1/models", "/metrics", "/load"):
        answer = watched.ask(path, **strange)
        assert not any(name.startswith("access-control-") for name in answer.headers)
    asked = watched.ask("/v1/completions", method="OPTIONS", access_control_request_method="POST",
                        access_control_request_headers="content-type", **strange)  # fmt: skip
    assert not any(name.startswith("access-control-") for name in asked.headers)
