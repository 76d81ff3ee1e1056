"""The gateway before two real servers: the bytes of one server, tenants, adapters, replicas that come and go."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
from infeng_demo import adapter_dir
from infeng_serve.auth import Keys
from ray_parts import REPLICA_ROUTES, Gated, gateway
from serve_parts import Reply, Running, running, slowed, until

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}
GREEDY = {"max_tokens": 12, "temperature": 0, "seed": 7}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "The king", **GREEDY}),
    ("/v1/completions", {"prompt": "The king", "stream": True, **GREEDY}),
    ("/v1/completions", {"model": "bard", "prompt": "The king", "stream": True, **GREEDY}),
    ("/v1/completions", {"model": "coder", "prompt": "def f", "n": 2, "temperature": 0.9, "seed": 5, "max_tokens": 9}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "stream": True, **GREEDY}),
    ("/v1/responses", {"input": "Hello", "stream": True, "max_output_tokens": 8, "temperature": 0}),
    ("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "A name"}], "stream": True, "max_tokens": 40, "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}}),
    ("/tokenize", {"prompt": "The king"}),
    ("/v1/completions", {"model": "nobody", "prompt": "x"}),
    ("/v1/completions", {"prompt": 5}),
    ("/v1/nowhere", {"prompt": "x"}),
]  # fmt: skip


@contextlib.contextmanager
def two(**given: Any) -> Iterator[tuple[Running, Running, Gated]]:
    keys = given.pop("keys", None)
    more = {name: given.pop(name) for name in ("overrides",) if name in given}
    with (
        running(routes=REPLICA_ROUTES, keys=keys, **more, **given) as first,
        running(routes=REPLICA_ROUTES, keys=keys, **more, **given) as second,
        gateway({"a": first.url, "b": second.url}, keys=keys, **given) as gated,
    ):
        yield first, second, gated


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Running, Running, Gated]]:
    with two() as found:
        found[2].settled(2)
        yield found


def said(reply: Reply) -> Any:
    """Return what an answer says, without what every call has anew: ids and times.

    Of a stream: its texts, ends and kinds of events, since how texts are cut into frames depends on the time.
    """
    kind, id = reply.headers.get("content-type", ""), reply.headers["x-request-id"]
    if not kind.startswith("text/event-stream"):
        return reply.status, kind, without(json.loads(reply.data), id)
    assert reply.data.endswith(b"\n\n")
    texts, ends, kinds = "", [], []
    for frame in reply.data.split(b"\n\n")[:-1]:
        data = frame.partition(b"data: ")[2]
        event = {} if data == b"[DONE]" else json.loads(data)
        kinds.append(event.get("type", "" if event else "DONE"))
        texts += event.get("delta", "")
        for choice in event.get("choices", ()):
            texts += choice.get("text", "") or choice.get("delta", {}).get("content", "") or ""
            ends += [choice["finish_reason"]] * bool(choice["finish_reason"])
    assert texts
    return reply.status, kind, texts, ends, [kind for kind, _ in groupby(kinds)]


def without(value: Any, id: str) -> Any:
    if isinstance(value, dict):
        drop = ("created", "created_at", "completed_at", "system_fingerprint", "obfuscation", "item_id")
        return {name: without(one, id) for name, one in value.items() if name not in drop}
    if isinstance(value, list):
        return [without(one, id) for one in value]
    return "ID" if isinstance(value, str) and id in value else value


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_an_answer_has_the_bytes_of_one_server(pair: tuple[Running, Running, Gated], path: str, body: dict[str, Any]):
    one, _, gated = pair
    assert said(gated.ask(path, body, x_request_id="same")) == said(one.ask(path, body, x_request_id="same"))


def test_calls_without_a_body_pass_through(pair: tuple[Running, Running, Gated]):
    one, _, gated = pair
    models = gated.ask("/v1/models").json
    assert {model["id"] for model in models["data"]} == {model["id"] for model in one.ask("/v1/models").json["data"]}
    assert gated.ask("/health").json == {"status": "ok"} and gated.ask("/ready").status == 200
    page = gated.ask("/")
    assert page.status == 200 and page.data == one.ask("/").data
    for path in ("/health", "/v1/models", "/"):
        head = gated.ask(path, method="HEAD")
        assert (head.status, head.data) == (200, b"") and head.headers["content-length"] != "0"
    options = gated.ask("/v1/models", method="OPTIONS")
    assert (options.status, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")


def test_a_compressed_body_is_read_and_a_bad_one_refused(pair: tuple[Running, Running, Gated]):
    import gzip

    _, _, gated = pair
    body = json.dumps({"prompt": "The king", **GREEDY}).encode()
    plain = gated.ask("/v1/completions", body, x_request_id="z")
    packed = gated.ask("/v1/completions", gzip.compress(body), x_request_id="z", content_encoding="gzip")
    assert said(plain) == said(packed)
    assert gated.ask("/v1/completions", b"no gzip", content_encoding="gzip").status == 400
    assert gated.ask("/v1/completions", b"x", content_type="text/plain").status == 415


def test_calls_of_an_adapter_meet_on_one_replica_and_the_state_of_replicas_is_a_secret():
    with two() as (first, second, gated):
        gated.settled(2)
        for _ in range(6):
            assert gated.ask("/v1/completions", {"model": "bard", "prompt": "Good morrow", **GREEDY}).status == 200
        loads = [
            next(info.loads for info in one.engine.adapters.infos() if info.name == "bard") for one in (first, second)
        ]
        assert sorted(loads) == [0, 1]
        assert first.ask("/replica").status == 404
        assert first.ask("/replica", x_infeng_replica="guess").status == 404


@pytest.mark.slow
def test_tenants_see_their_own_adapters_on_every_replica_and_on_later_ones(tmp_path: Path):
    (tmp_path / "keys").write_text("sk-a acme\nsk-b beta\nsk-o ops * admin\n")
    root = adapter_dir("shakespeare").parent
    keys = Keys(file=tmp_path / "keys")
    a, b, o = ({"authorization": f"Bearer sk-{name}"} for name in "abo")
    with two(keys=keys, lora_roots=(str(root),)) as (first, second, gated):
        gated.settled(2, **o)
        assert gated.ask("/v1/completions", {"prompt": "x"}).status == 401
        assert gated.ask("/replicas", **a).status == 403
        body = {"lora_name": "mine", "lora_path": "shakespeare"}
        assert gated.ask("/v1/load_lora_adapter", body, **a).status == 200
        call = {"model": "mine", "prompt": "Good morrow", **GREEDY}
        for server in (first, second):
            assert server.ask("/v1/completions", call, **a).status == 200
        assert gated.ask("/v1/completions", call, **a).status == 200
        assert gated.ask("/v1/completions", call, **b).status == 404
        with running(routes=REPLICA_ROUTES, keys=keys, lora_roots=(str(root),)) as third:
            gated.members["c"] = third.url
            gated.settled(3, **o)
            assert third.ask("/v1/completions", call, **a).status == 200
            del gated.members["c"]
            gated.settled(2, **o)
        assert gated.ask("/v1/unload_lora_adapter", {"lora_name": "mine"}, **a).status == 200
        assert [server.ask("/v1/completions", call, **a).status for server in (first, second)] == [404, 404]
        assert gated.ask("/v1/load_lora_adapter", {"lora_name": "no", "lora_path": "nowhere"}, **a).status == 403


def test_an_adapter_that_one_replica_refuses_is_on_none():
    with two() as (first, second, gated):
        gated.settled(2)
        path = {"lora_path": str(adapter_dir("shakespeare"))}
        with contextlib.suppress(Exception):
            second.engine.adapters.load("odd", path["lora_path"])
        second.server.service.model.adapters._shared["odd"] = "odd"
        with pytest.MonkeyPatch.context() as patch:
            for server in (first, second):
                patch.setattr(server.server.service.model.adapters, "_roots", [Path("/")])
            reply = gated.ask("/v1/load_lora_adapter", {"lora_name": "odd", **path})
        assert reply.status == 400 and "already been loaded" in reply.json["error"]["message"]
        assert "odd" not in first.engine.adapters


@pytest.mark.slow
def test_a_replica_that_drains_gets_no_calls_and_those_it_answers_end():
    with two() as (first, _, gated):
        gated.settled(2)
        body = {"prompt": "The king", "max_tokens": 200, "ignore_eos": True, "stream": True, "seed": 3}
        got: dict[int, list[bytes]] = {}

        def stream(number: int) -> None:
            with httpx.stream("POST", f"{gated.url}/v1/completions", json={**body, "prompt": f"{number} x"}) as answer:
                got[number] = list(answer.iter_bytes())

        threads = [threading.Thread(target=stream, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        assert until(lambda: sum(one["calls"] > 0 for one in gated.replicas().values()) == 2, 30)
        first.server.stop()
        for _ in range(6):
            assert gated.ask("/v1/completions", {"prompt": "The", **GREEDY}).status == 200
        for thread in threads:
            thread.join(60)
        assert all(b"".join(data).endswith(b"data: [DONE]\n\n") for data in got.values()) and len(got) == 8
        assert not any(b'"error"' in b"".join(data) for data in got.values())
        gated.settled(1)
        assert set(gated.replicas()) == {"b"}


def test_without_a_replica_calls_are_refused_with_a_time_to_come_back():
    with gateway({}) as gated:
        for path, body in (
            ("/ready", None),
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/load_lora_adapter", {"lora_name": "x"}),
        ):
            reply = gated.ask(path, body)
            assert (reply.status, reply.json["error"]["code"]) == (503, "no_replica")
            assert int(reply.headers["retry-after"]) >= 1
        assert gated.ask("/health").status == 200


def test_metrics_sum_the_replicas(pair: tuple[Running, Running, Gated]):
    from prometheus_client.parser import text_string_to_metric_families

    _, _, gated = pair
    text = gated.ask("/metrics").data.decode()
    values = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    assert values["infeng:replicas_ready"] == 2 and values["infeng:num_requests_waiting"] == 0


def test_a_page_of_another_name_cannot_call_a_gateway_without_keys(pair: tuple[Running, Running, Gated]):
    _, _, gated = pair
    assert gated.ask("/v1/models", host="evil.example").json["error"]["code"] == "host_not_allowed"


def test_a_client_that_leaves_frees_its_replica(pair: tuple[Running, Running, Gated]):
    first, second, gated = pair
    body = {"prompt": "The king", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with slowed(first.engine, 0.02) as left, slowed(second.engine, 0.02) as right:
        with httpx.stream("POST", f"{gated.url}/v1/completions", json=body) as answer:
            next(answer.iter_bytes())
            assert first.blocks_in_use() + second.blocks_in_use() > 0
        assert until(lambda: not sum(one["calls"] for one in gated.replicas().values()), 30)
        assert until(lambda: first.engine.load().running + second.engine.load().running == 0, 30)
    assert left.steps + right.steps < 400
