"""The document describes what the routes take and give: bodies and frames are held to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from infeng_serve.protocol import chat, completions, responses
from infeng_serve.protocol.openapi import OPERATIONS, document
from infeng_serve.routes import table
from jsonschema import Draft202012Validator
from protocol_parts import CALLS, SAID, TOOLS, body_of, data_of, scripted, streamed
from referencing import Registry
from referencing.jsonschema import DRAFT202012

DOCUMENT = json.loads(document())
REGISTRY: Any = Registry().with_resource("urn:api", DRAFT202012.create_resource(DOCUMENT))


def validator(schema: Any) -> Draft202012Validator:
    """Return a validator of a schema that stands in the document."""
    absolute = json.loads(json.dumps(schema).replace('"#/', '"urn:api#/'))
    return Draft202012Validator(absolute, registry=REGISTRY)


def operation(path: str, method: str = "post") -> Any:
    return DOCUMENT["paths"][path][method]


def schema_of(path: str, part: str) -> Draft202012Validator:
    one = operation(path)
    if part == "body":
        return validator(one["requestBody"]["content"]["application/json"]["schema"])
    schema = one["responses"]["200"]["content"][part]["schema"]
    if part == "text/event-stream":
        schema = schema["properties"]["data"]["anyOf"][1]["contentSchema"]
    return validator(schema)


def nodes(value: Any) -> Iterator[Any]:
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(inner)


def test_the_document_is_valid_openapi_3_1():
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"].keys() >= {"title", "version"}
    ids = [one["operationId"] for path in DOCUMENT["paths"].values() for one in path.values()]
    assert len(set(ids)) == len(ids) == len(OPERATIONS)
    for path in DOCUMENT["paths"].values():
        for one in path.values():
            assert one.keys() <= {"summary", "operationId", "responses", "requestBody", "parameters", "security"}
            assert all(answer["description"] for answer in one["responses"].values())
    for path in DOCUMENT["paths"]:
        assert path.startswith("/")
        given = DOCUMENT["paths"][path].get("get", {}).get("parameters", [])
        assert path.count("{") == len([one for one in given if one["in"] == "path"])


def test_every_schema_is_valid_and_every_reference_resolves():
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    references = {node["$ref"] for node in nodes(DOCUMENT) if isinstance(node, dict) and "$ref" in node}
    for reference in references:
        name = reference.removeprefix("#/components/schemas/")
        assert name in DOCUMENT["components"]["schemas"], reference


@pytest.mark.parametrize(
    "path",
    ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/models", "/tokenize",
     "/detokenize", "/health", "/ready", "/version", "/load", "/metrics", "/openapi.json", "/v1/load_lora_adapter",
     "/v1/unload_lora_adapter", "/lora-adapters"],
)  # fmt: skip
def test_every_operation_lists_its_errors(path):
    for method, one in DOCUMENT["paths"][path].items():
        if path in ("/health", "/ready"):
            assert one["security"] == []
        else:
            assert "401" in one["responses"]
        if method == "post":
            assert one["responses"].keys() >= {"200", "400", "401", "413"}
            assert one["requestBody"]["required"]


def test_every_route_of_the_server_is_documented():
    served = {(path, method.lower()) for path, route in table().items() for method in route.handlers}
    described = {(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods}
    named = {"/v1/models/": "{model}", "/v1/streams/": "{call}"}
    assert {(path + named.get(path, ""), method) for path, method in served} <= described


def test_events_are_objects_whose_data_is_json_of_a_known_kind_or_the_end_mark():
    for path, method in (("/v1/completions", "post"), ("/v1/chat/completions", "post"), ("/v1/streams/{call}", "get")):
        schema = operation(path, method)["responses"]["200"]["content"]["text/event-stream"]["schema"]
        assert validator(schema).is_valid({"data": "[DONE]"})
        assert not validator(schema).is_valid({"event": "message"})
        kinds = schema["properties"]["data"]["anyOf"][1]["contentSchema"]
        assert validator(kinds).is_valid({"error": {"message": "m", "type": "t"}})
        assert not validator(kinds).is_valid({"nonsense": 1})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "top_p": 1.5}),
        ("/v1/completions", {"prompt": "a", "n": 0}),
        ("/v1/completions", {"prompt": [1, "a"]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}),
        ("/v1/responses", {"input": [{"type": "message"}]}),
        ("/v1/completions", {"prompt": "a", "stop": ""}),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}),
        ("/v1/completions", {"prompt": "a", "prompt_logprobs": 257}),
        ("/v1/chat/completions", {"messages": [{"role": "king", "content": "a"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tool_choice": "maybe"}),
        ("/v1/responses", {"input": "a", "previous_response_id": "resp_1"}),
        ("/v1/responses", {"input": "a", "timeout": 0}),
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}),
        ("/v1/embeddings", {"input": "a", "priority": 2**31}),
    ],
)
def test_values_that_are_refused_are_not_valid_by_the_schema(path, body):
    takes = schema_of(path, "body")
    assert not takes.is_valid(body)
    right = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "input": "a"}
    required = {"/v1/chat/completions": "messages", "/tokenize": "prompt", "/v1/completions": "prompt"}.get(
        path, "input"
    )
    assert takes.is_valid({required: right[required]})


def test_streams_and_waits_are_described():
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
        content = operation(path)["responses"]["200"]["content"]
        assert content.keys() == {"application/json", "text/event-stream"}
        assert operation(path)["responses"]["429"]["headers"].keys() == {"Retry-After", "retry-after-ms"}
    assert DOCUMENT["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


CALL: dict[str, Any] = {"id": "x", "type": "function", "function": {"name": "add", "arguments": "{}"}}
ROUTES: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "/v1/completions": (completions.read, [{"prompt": "a"}, {"prompt": [[1, 2]], "logprobs": 1, "prompt_logprobs": 0}]),
    "/v1/chat/completions": (
        chat.read,
        [
            {"messages": [{"role": "user", "content": "Hi"}], "stop": ["a"], "logit_bias": {"1": 2}},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, {"role": "assistant",
             "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "x", "content": "3"}], "tools": TOOLS,
             "tool_choice": {"type": "function", "function": {"name": "add"}}, "logprobs": True, "top_logprobs": 1},
        ],
    ),
    "/v1/responses": (
        responses.read,
        [
            {"input": "Hi", "top_logprobs": 1},
            {"input": [{"role": "user", "content": "Hi"}, {"type": "function_call", "call_id": "x", "name": "add",
             "arguments": "{}"}, {"type": "function_call_output", "call_id": "x", "output": "3"}],
             "tools": [{"type": "function", **tool["function"]} for tool in TOOLS],
             "text": {"format": {"type": "text"}}},
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("path", ROUTES)
def test_bodies_answers_and_frames_match_the_document(context, path):
    read, bodies = ROUTES[path]
    takes, gives, streams = (schema_of(path, part) for part in ("body", "application/json", "text/event-stream"))
    for given in bodies:
        takes.validate(given)
        answer = read(body_of(**given), context)
        top = answer.requests[0].params.logprobs
        events = [scripted(context.tokenizer, one.prompt, SAID + CALLS, top=top) for one in answer.requests]
        gives.validate(json.loads(answer.body([one[-1].completion for one in events])))
        stream = read(body_of(**{name: one for name, one in given.items() if name != "prompt_logprobs"}), context)
        for frame in streamed(stream, events):
            if frame != b"data: [DONE]\n\n":
                streams.validate(data_of(frame))
    assert not takes.is_valid({**bodies[0], "temperature": "hot"})
    assert not takes.is_valid({**bodies[0], "nonsense": 1})
    assert not takes.is_valid({})
