"""The OpenAPI document of a server with this wheel: every route is in it, and answers and errors keep to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from dialect_parts import dialects, speaking
from infeng_serve.auth import Keys
from infeng_serve.hookspecs import routes_of
from infeng_serve.routes import table
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012
from serve_parts import Running

from infeng_core.api import Plugins, UsageError, load_config

QUESTION = [{"role": "user", "content": "Hi"}]
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages", {"model": "demo", "messages": QUESTION, "max_tokens": 3}),
    ("/v1/messages/count_tokens", {"model": "demo", "messages": QUESTION}),
    ("/api/generate", {"model": "demo", "prompt": "Hi", "options": {"num_predict": 3}, "stream": False}),
    ("/api/chat", {"model": "demo", "messages": QUESTION, "options": {"num_predict": 3}, "stream": False}),
    ("/api/embed", {"model": "demo", "input": ["Hi"]}),
    ("/api/embeddings", {"model": "demo", "prompt": "Hi"}),
    ("/api/show", {"model": "demo"}),
    ("/completion", {"prompt": "Hi", "n_predict": 3, "n_probs": 1}),
    ("/embedding", {"content": "Hi"}),
    ("/apply-template", {"messages": QUESTION}),
    ("/chat/completions", {"messages": QUESTION, "max_tokens": 3}),
    ("/tokenize", {"content": "Hi", "with_pieces": True}),
    ("/detokenize", {"tokens": [5, 6]}),
]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    with speaking(names=["demo"], keys=Keys(["right"])) as found:
        yield found


@pytest.fixture(scope="module")
def document(served: Running) -> Any:
    return served.ask("/openapi.json").json


def schema(document: Any, found: Any) -> Draft202012Validator:
    """Return a validator of a schema that stands in the document."""
    registry: Any = Registry().with_resource("urn:api", DRAFT202012.create_resource(document))
    return Draft202012Validator(json.loads(json.dumps(found).replace('"#/', '"urn:api#/')), registry=registry)


def test_every_route_of_the_wheel_is_described(document: Any):
    routes = dialects()
    assert routes.keys() <= document["paths"].keys()
    for path, route in routes.items():
        assert {method.upper() for method in document["paths"][path]} == set(route.handlers)
    ids = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(("path", "body"), CALLS, ids=[path for path, _ in CALLS])
def test_bodies_answers_and_errors_keep_to_the_document(document: Any, served: Running, path: str, body: Any):
    one = document["paths"][path]["post"]
    schema(document, one["requestBody"]["content"]["application/json"]["schema"]).validate(body)
    reply = served.ask(path, body)
    assert reply.status == 200, reply.data
    schema(document, one["responses"]["200"]["content"]["application/json"]["schema"]).validate(reply.json)
    refused = served.ask(path, {**body, "no_such_parameter": 1})
    assert refused.status == 400
    schema(document, one["responses"]["400"]["content"]["application/json"]["schema"]).validate(refused.json)


@pytest.mark.parametrize("path", ["/api/tags", "/api/ps", "/api/version", "/props", "/slots", "/models"])
def test_what_is_told_keeps_to_the_document(document: Any, served: Running, path: str):
    one = document["paths"][path]["get"]
    answer = one["responses"]["200"]["content"]["application/json"]["schema"]
    schema(document, answer).validate(served.ask(path).json)


def test_events_keep_to_the_document(document: Any, served: Running):
    one = document["paths"]["/v1/messages"]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    data = schema(document, one["properties"]["data"]["anyOf"][1]["contentSchema"])
    body = {"model": "demo", "messages": QUESTION, "max_tokens": 3, "stream": True}
    frames = served.ask("/v1/messages", body).data.decode().split("\n\n")[:-1]
    for frame in frames:
        data.validate(json.loads(frame.split("data: ")[1]))
    lines = document["paths"]["/api/chat"]["post"]["responses"]["200"]["content"]["application/x-ndjson"]["schema"]
    body = {"model": "demo", "messages": QUESTION, "options": {"num_predict": 3}}
    for line in served.ask("/api/chat", body).data.splitlines():
        schema(document, lines).validate(json.loads(line))


def test_a_server_finds_the_routes_of_the_installed_wheel_and_only_the_dialects_that_are_named():
    every = routes_of(Plugins.discover(load_config()), table())
    assert dialects().keys() <= every.keys()
    some = Plugins.discover(load_config(overrides={"dialects.use": ["ollama"]}))
    assert {path for path in routes_of(some, table()) if path in dialects()} == set(dialects(use=["ollama"]))
    with pytest.raises(UsageError, match="'olama' is no dialect"):
        dialects(use=["olama"])


@pytest.mark.parametrize("path", sorted(dialects()))
def test_every_route_denies_without_a_key_in_the_form_of_its_errors(guarded: Running, path: str):
    document = guarded.ask("/openapi.json", x_api_key="right").json
    for method, route in document["paths"][path].items():
        body = {} if method == "post" else None
        for headers in ({}, {"x_api_key": "wrong"}, {"authorization": "Bearer wrong"}):
            reply = guarded.ask(path, body, method=method.upper(), **headers)
            assert reply.status == 401
            schema(document, route["responses"]["401"]["content"]["application/json"]["schema"]).validate(reply.json)
        assert guarded.ask(path, body, method=method.upper(), x_api_key="right").status != 401
    assert guarded.ask(path, {}, method="DELETE", x_api_key="right").status == 405
