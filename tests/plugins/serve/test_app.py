"""Paths, methods, bodies and headers."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serve_parts import Running, connected, held, posted, read_until, running, until

from infeng_core.api import __version__


@pytest.mark.slow
def test_liveness_version_and_load_are_served(served: Running):
    assert served.ask("/health").json == {"status": "ok"}
    assert served.ask("/ready").status == 200
    version = served.ask("/version").json
    assert version["version"] == __version__ and version["startup_ms"]["listen"] >= 0
    load = served.ask("/load").json
    assert (load["server_load"], load["running"], load["waiting"]) == (0, 0, 0)
    assert 0 <= load["kv_cache_usage"] <= 1


def test_a_server_with_a_hanging_step_is_alive_and_not_ready(served: Running):
    dog = served.engine._watchdog

    def is_seen() -> bool:
        """Let the watchdog look twice, a minute apart."""
        dog.look(1e9)
        dog.look(1e9 + 60)
        return served.engine.stall is not None

    with held(served.engine, 0) as may_go_on, ThreadPoolExecutor(1) as pool:
        call = pool.submit(served.ask, "/tiny", {"prompt": "x", "max_tokens": 1})
        assert until(is_seen)
        reply = served.ask("/ready")
        assert (reply.status, reply.json["error"]["code"]) == (503, "stalled")
        assert int(reply.headers["retry-after"]) > 0
        assert served.ask("/health").status == 200
        may_go_on.set()
        assert call.result().status == 200
    assert until(lambda: served.ask("/ready").status == 200 or dog.look(2e9))


def test_adapters_are_listed_as_models_with_root_and_parent(served: Running):
    cards = {card["id"]: card for card in served.ask("/v1/models").json["data"]}
    base = next(iter(cards))
    assert cards[base]["parent"] is None
    assert (cards["bard"]["parent"], cards["bard"]["root"]) == (base, "shakespeare")
    assert cards["bard"]["max_model_len"] == served.engine.limits.context
    assert served.ask("/v1/models/bard").json == cards["bard"]
    assert served.ask("/v1/models/nobody").status == 404


def test_texts_become_tokens_and_come_back(served: Running):
    found = served.ask("/tokenize", {"prompt": "Once upon a time", "return_token_strs": True}).json
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["tokens"] == served.engine.tokenize("Once upon a time")
    assert found["max_model_len"] == served.engine.limits.context
    whole = served.ask("/detokenize", {"tokens": found["tokens"]}).json
    assert whole == {"prompt": "Once upon a time", "content": "Once upon a time"}
    assert served.ask("/detokenize", {"tokens": [10**9]}).json["error"]["param"] == "tokens"
    assert served.ask("/tokenize", {}).status == 400


def test_an_unknown_path_is_404_and_a_wrong_method_405_with_the_allowed_ones(served: Running):
    reply = served.ask("/v2/nothing")
    assert (reply.status, reply.json["error"]["code"]) == (404, "not_found")
    reply = served.ask("/tiny")
    assert (reply.status, reply.headers["allow"]) == (405, "OPTIONS, POST")
    reply = served.ask("/v1/models", {}, method="DELETE")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


def test_head_has_the_headers_of_get_and_options_names_the_methods(served: Running):
    reply = served.ask("/v1/models", method="HEAD")
    assert (reply.status, reply.data) == (200, b"")
    assert int(reply.headers["content-length"]) == len(served.ask("/v1/models").data)
    reply = served.ask("/tiny", method="OPTIONS")
    assert (reply.status, reply.headers["allow"]) == (204, "OPTIONS, POST")
    assert "access-control-allow-origin" not in reply.headers


def test_a_harmless_request_id_is_returned_and_any_other_replaced(served: Running):
    assert served.ask("/health", x_request_id="a-1:b/2").headers["x-request-id"] == "a-1:b/2"
    for bad in ("", "x" * 129, "a b", 'a"b', "\xe4"):
        made = served.ask("/health", x_request_id=bad).headers["x-request-id"]
        assert re.fullmatch(r"[0-9a-f]{32}", made)
    assert served.ask("/v2/nothing", x_request_id="mine").headers["x-request-id"] == "mine"
    assert served.ask("/tiny", {"prompt": "x", "max_tokens": 1}, x_request_id="mine").json["id"] == "mine"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"prompt": "\xff\xfe"}', "UTF-8"),
        (b'{"prompt": "x"', "truncated"),
        (b"", "truncated"),
        (b"[" * 100_000, ""),
        (b'{"prompt": {}, "lora_name": 5}', "prompt"),
        (b'"text"', "object"),
    ],
)
@pytest.mark.parametrize("path", ["/tiny", "/tokenize", "/v1/load_lora_adapter"])
def test_a_body_that_is_no_json_or_not_utf_8_is_400(served: Running, path: str, body: bytes, says: str):
    reply = served.ask(path, body)
    assert reply.status == 400
    error = reply.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert path != "/tiny" or says in error["message"]


def test_a_body_with_another_content_type_is_refused(served: Running):
    body = b'{"prompt": "x", "max_tokens": 1}'
    assert served.ask("/tiny", body, content_type="text/plain").status == 415
    assert served.ask("/tiny", body, content_type="application/x-www-form-urlencoded").status == 415
    assert served.ask("/tiny", body, content_type="application/json; charset=utf-8").status == 200
    plain = connected(served.address)
    for origin, status in ((b"", b"200"), (b"origin: https://evil.example\r\n", b"415")):
        plain.sendall(
            b"POST /tiny HTTP/1.1\r\nhost: localhost\r\n" + origin + b"content-length: %d\r\n\r\n" % len(body) + body
        )
        assert read_until(plain, b"}").startswith(b"HTTP/1.1 " + status)


@pytest.mark.slow
def test_bodies_are_bounded_with_and_without_content_length(served: Running):
    with running(max_body=1000) as small:
        fits = {"prompt": "x" * 900, "max_tokens": 1}
        assert small.ask("/tiny", fits).status == 200
        reply = small.ask("/tiny", {"prompt": "x" * 1000})
        assert (reply.status, reply.json["error"]["code"]) == (413, "body_too_large")
        assert "1000" in reply.json["error"]["message"]
        chunked = connected(small.address)
        head = b"POST /tiny HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        chunked.sendall(head + b"transfer-encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert read_until(chunked, b"}").startswith(b"HTTP/1.1 413")


def test_a_body_that_does_not_arrive_is_408():
    with running(body_timeout=0.1) as hasty:
        client = connected(hasty.address)
        begin = time.monotonic()
        client.sendall(posted("/tiny", {"prompt": "x"})[:-3])
        assert read_until(client, b"}").startswith(b"HTTP/1.1 408")
        assert time.monotonic() - begin < 5
        assert until(lambda: not hasty.server.service.limits.calls)


def test_pages_of_listed_origins_may_call_and_others_may_not():
    with running(cors=("https://app.example",)) as served:
        reply = served.ask("/v1/models", origin="https://app.example")
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
        assert reply.headers["vary"] == "origin"
        other = served.ask("/v1/models", origin="https://evil.example")
        assert "access-control-allow-origin" not in other.headers
        preflight = served.ask(
            "/tiny",
            method="OPTIONS",
            origin="https://app.example",
            access_control_request_method="POST",
            access_control_request_headers="authorization, content-type",
        )
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-methods"] == "OPTIONS, POST"
        assert preflight.headers["access-control-allow-headers"] == "authorization, content-type"
        assert served.ask("/v2/nothing", origin="https://app.example").headers["access-control-allow-origin"]


def test_more_calls_than_allowed_are_503_and_more_of_one_tenant_429():
    from infeng_serve.auth import Keys
    from serve_parts import stepping

    body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with running(max_requests=2, max_requests_per_key=1, keys=Keys(["one", "two", "three"])) as served:
        with stepping(served.engine, 0.0) as steps:
            clients = []
            for key in ("one", "two"):
                steps.allow(4)
                clients.append(connected(served.address))
                clients[-1].sendall(posted("/tiny", body, f"authorization: Bearer {key}"))
                read_until(clients[-1], b"text")
                again = served.ask("/tiny", body, authorization=f"Bearer {key}")
                assert again.status == (429 if key == "one" else 503)
                assert "retry-after" in again.headers
            assert served.ask("/tiny", body, authorization="Bearer three").status == 503
            for client in clients:
                client.close()
            assert until(lambda: not served.server.service.limits.calls)
            steps.allow(float("inf"))
        assert served.ask("/tiny", {**body, "max_tokens": 1}, authorization="Bearer one").status == 200


def test_a_fault_of_the_server_is_500_without_details_and_the_next_call_is_served(served: Running):
    from infeng_serve.routes.generation import route

    def broken(body: bytes, context: object) -> object:
        raise ZeroDivisionError("a secret")

    with running(routes={"/broken": route(broken)}) as found:  # type: ignore[arg-type]
        reply = found.ask("/broken", {}, x_request_id="it")
        assert reply.status == 500
        assert b"secret" not in reply.data
        assert "it" in reply.json["error"]["message"]
        assert found.ask("/health").status == 200


@pytest.mark.slow
def test_an_answer_is_cut_off_after_the_request_timeout():
    from serve_parts import slowed

    with running(request_timeout=1.0) as served, slowed(served.engine, 0.02):
        reply = served.ask("/tiny", {"prompt": "x", "max_tokens": 500, "ignore_eos": True})
        assert reply.json["finish_reasons"] == ["timeout"]
        assert reply.json["texts"][0]


def test_every_route_is_described(served: Running):
    from infeng_serve.routes import table

    described = served.ask("/openapi.json").json["paths"]
    for path, found in table().items():
        operations = described[path + {"/v1/models/": "{model}", "/v1/streams/": "{call}"}.get(path, "")]
        assert {method.upper() for method in operations} == set(found.handlers)
        assert all(("security" in operation) is found.is_open for operation in operations.values())


def test_metrics_match_the_served_calls(tmp_path: Path):
    from infeng_serve.auth import Keys
    from infeng_serve.request_observers import request_observers
    from serve_parts import settings_of

    keys = Keys(["operator"])
    with running(keys=keys, watch=lambda model: request_observers(model, settings_of())) as found:
        bearer = {"authorization": "Bearer operator"}
        assert found.ask("/metrics").status == 401
        assert found.ask("/tiny", {"prompt": "x", "max_tokens": 3, "model": "bard"}, **bearer).status == 200
        assert found.ask("/tiny", {"prompt": "x", "model": "nobody"}, **bearer).status == 404
        reply = found.ask("/metrics", **bearer)
        assert reply.headers["content-type"].startswith("text/plain")
        text = reply.data.decode()
        assert 'infeng:generation_tokens_total{model_name="model"} 3' in text
        assert 'adapter_name="bard"' in text
        assert 'reason="not_found"} 1' in text
        assert 'reason="unauthorized"} 1' in text
        (tmp_path / "keys").write_text("beta-key beta\nops-key ops *\n")
        found.server.service.keys = Keys(file=tmp_path / "keys")
        assert found.ask("/metrics", authorization="Bearer beta-key").status == 403
        assert found.ask("/metrics", authorization="Bearer ops-key").status == 200
