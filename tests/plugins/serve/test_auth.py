"""Keys and tenants: who may call, what each sees, and that nothing is shared by mistake."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from infeng_chat.rendering.files import TemplateFiles
from infeng_serve import auth
from infeng_serve.auth import Keys
from infeng_serve.routes import table
from infeng_serve.server import Server
from infeng_serve.warm import read_prompts
from serve_parts import Running, running, settings_of, until

from infeng_core.api import ModelError, UsageError

FILE = """
# who
alpha-key acme *
beta-key beta bard
gamma-key - -
root-key ops * admin
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def kept(file: Path) -> Iterator[Running]:
    """A server that asks for keys."""
    with running(keys=Keys(["plain-key"], file=file)) as found:
        yield found


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", [*sorted(table()), "/tiny", "/not/there", "/v1/models/bard", "//health", "/health/"])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "DELETE"])
def test_every_route_but_liveness_denies_without_a_key(kept: Running, path: str, method: str):
    body = None if method in ("GET", "HEAD") else {}
    if path in ("/health", "/ready"):
        assert kept.ask(path, body, method=method).status in (200, 405)
        return
    for headers in ({}, bearer("wrong"), {"authorization": "Basic plain-key"}, bearer(""), bearer("plain-key2")):
        reply = kept.ask(path, body, method=method, **headers)
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"


def test_a_key_may_be_in_x_api_key_and_authorization_counts_first(kept: Running):
    assert kept.ask("/v1/models", x_api_key="alpha-key").status == 200
    assert kept.ask("/v1/models", x_api_key="alpha-key2").status == 401
    assert kept.ask("/v1/models", x_api_key="").status == 401
    shown = kept.ask("/v1/models", x_api_key="alpha-key", **bearer("gamma-key")).json["data"]
    assert [one["id"] for one in shown] == [
        one["id"] for one in kept.ask("/v1/models", **bearer("gamma-key")).json["data"]
    ]
    assert kept.ask("/v1/models", x_api_key="alpha-key", **bearer("wrong")).status == 401


@pytest.mark.parametrize("key", ["plain-key", "alpha-key", "beta-key", "gamma-key", "root-key"])
def test_a_key_opens_every_route(kept: Running, key: str):
    assert kept.ask("/version", **bearer(key)).status == 200
    assert kept.ask("/not/there", **bearer(key)).status == 404
    assert kept.ask("/version", authorization=f"bearer  {key} ").status == 200


@pytest.mark.parametrize(
    ("key", "names"),
    [("plain-key", {"bard", "coder"}), ("alpha-key", {"bard", "coder"}), ("beta-key", {"bard"}), ("gamma-key", set())],
)
def test_a_key_shows_and_opens_its_adapters_alone(kept: Running, key: str, names: set[str]):
    cards = kept.ask("/v1/models", **bearer(key)).json["data"]
    assert {card["id"] for card in cards if card["parent"]} == names
    for name in ("bard", "coder"):
        reply = kept.ask("/tiny", {"prompt": "x", "max_tokens": 1, "model": name}, **bearer(key))
        assert reply.status == (200 if name in names else 404)


def test_requests_carry_their_tenant_and_share_nothing_with_others(kept: Running):
    """Equal prompts of one tenant share what is computed, those of two do not."""
    prompt = [11 + number % 80 for number in range(64)]
    seen = []
    submit = kept.engine.submit

    def listening(request, *args, **more):  # type: ignore[no-untyped-def]
        seen.append(request)
        return submit(request, *args, **more)

    kept.engine.submit = listening  # type: ignore[method-assign]
    try:
        for key in ("alpha-key", "beta-key", "gamma-key", "plain-key", "alpha-key"):
            assert kept.ask("/tiny", {"prompt": prompt, "max_tokens": 1}, **bearer(key)).status == 200
    finally:
        del kept.engine.submit  # type: ignore[method-assign]
    tenants = [request.tenant for request in seen]
    assert tenants[:2] == ["acme", "beta"]
    assert all(tenant.startswith("key-") for tenant in tenants[2:4])
    assert len(set(tenants)) == 4
    assert len({request.cache_salt for request in seen}) == 4
    assert seen[0].cache_salt == seen[4].cache_salt
    assert "gamma" not in tenants[2] and "plain" not in tenants[3]


def test_the_file_of_keys_is_reread_while_the_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(auth, "CHECK_SECONDS", 0.0)
    path = tmp_path / "keys"
    path.write_text("old-key acme\n")
    keys = Keys(file=path)
    assert keys.caller(b"Bearer old-key") is not None
    path.write_text("new-key acme\nother-key beta\n")
    os.utime(path, ns=(time.time_ns(), time.time_ns() + 10**9))
    assert keys.caller(b"Bearer old-key") is None
    found = keys.caller(b"Bearer new-key")
    assert found is not None and found.tenant == "acme"
    path.write_text("new-key acme beta gamma delta\n")
    assert keys.caller(b"Bearer other-key") is not None, "what cannot be read changes nothing"
    path.unlink()
    assert keys.caller(b"Bearer other-key") is not None
    path.write_text("last-key acme\n")
    assert keys.caller(b"Bearer other-key") is None
    assert keys.caller(b"Bearer last-key") is not None
    path.write_text("# nobody any more\n")
    assert keys.caller(b"Bearer last-key") is None
    assert keys.are_asked_for


def test_a_running_server_rereads_its_file_of_keys(kept: Running, file: Path):
    file.write_text(FILE + "late-key late\n")
    assert until(lambda: kept.ask("/version", **bearer("late-key")).status == 200, 5)
    file.write_text(FILE)
    assert until(lambda: kept.ask("/version", **bearer("late-key")).status == 401, 5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a b c d e", "keys:1"),
        ("key one\nkey two", "keys:2"),
        ("key one * boss", "keys:1"),
        ("k\x00y one", "keys:1"),
        ("schl\xfcssel one", "UTF-8"),
    ],
)
def test_an_error_in_the_file_of_keys_names_the_line_and_hides_the_key(tmp_path: Path, text: str, says: str):
    path = tmp_path / "keys"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=says) as caught:
        Keys(file=path)
    assert "key" not in str(caught.value).replace(str(path), "").replace("keys", "").replace("the key", "")


def test_every_key_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch):
    compared: list[bytes] = []
    monkeypatch.setattr(auth.hmac, "compare_digest", lambda one, other: compared.append(other) or one == other)
    keys = Keys(["first", "second", "third"])
    for given, found in ((b"first", True), (b"third", True), (b"none", False)):
        compared.clear()
        assert (keys.caller(b"Bearer " + given) is not None) is found
        assert len(compared) == 3


def test_without_keys_every_client_may_call(served: Running):
    assert served.ask("/version").status == 200
    assert served.ask("/version", **bearer("anything")).status == 200


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_every_option_with_a_file_refuses_an_invalid_file_at_once(tmp_path: Path, make: Callable[[Path], None]):
    path = tmp_path / "file"
    make(path)
    with pytest.raises(UsageError, match="no regular file"):
        Keys(file=path)
    with pytest.raises(UsageError, match="no regular file"):
        read_prompts(path)
    for option in ("tls_cert", "tls_key"):
        given = {"tls_cert": str(Path(__file__)), option: str(path)}
        with pytest.raises(UsageError, match="no regular file"):
            Server(settings_of(**given), lambda: pytest.fail("it is not loaded"))
    with pytest.raises(ModelError, match="no regular file"):
        TemplateFiles.read(tmp_path, path)
