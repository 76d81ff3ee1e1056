"""The OpenAPI 3.1 document, made of the very structs that bodies are read into and written from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args

import msgspec

from infeng_core.api import __version__
from infeng_serve.idempotency import MOST_CHARACTERS
from infeng_serve.protocol import (
    chat,
    chat_answer,
    completion_answer,
    completions,
    embedding_types,
    messages,
    model_types,
    response_answer,
    response_input,
    responses,
    state_types,
    token_types,
    tools,
)
from infeng_serve.protocol.errors import ErrorBody
from infeng_serve.protocol.unknown import described

TEXT = "text/plain"
JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    summary: str
    body: Any = None
    """Type of its body."""
    answer: Any = None
    """Type of its answer; None is plain text."""
    events: tuple[Any, ...] = ()
    """Types of its stream's events, where it streams."""
    headers: tuple[str, ...] = ()
    """Those of a request that change the answer."""
    is_open: bool = False
    """Whether it needs no key."""
    errors: tuple[int, ...] = (401, 429)


_GENERATE = (400, 401, 404, 408, 409, 413, 415, 422, 429, 500, 501, 503)
_READ = (400, 401, 404, 408, 413, 415, 503)
_TOKENIZE = Annotated[token_types.TokenizeRequest, msgspec.Meta(extra_json_schema=token_types.EITHER)]
_CALL = ("Idempotency-Key",)

_HEADERS: Mapping[str, Any] = {
    "Idempotency-Key": {
        "description": "a call that comes again with the same key gets the same answer",
        "schema": {"type": "string", "maxLength": MOST_CHARACTERS},
    },
    "Last-Event-ID": {
        "description": "of the last frame that the client has; without it the stream begins anew",
        "schema": {"type": "string"},
    },
}

OPERATIONS = (
    Operation("post", "/v1/completions", "Go on with a text", completions.CompletionRequest,
              completion_answer.CompletionResponse, (completion_answer.CompletionResponse,), _CALL, errors=_GENERATE),
    Operation("post", "/v1/chat/completions", "Answer a conversation", chat.ChatRequest, chat_answer.ChatResponse,
              (chat_answer.ChatChunk,), _CALL, errors=_GENERATE),
    Operation("post", "/v1/responses", "Answer a conversation, with items and events", responses.ResponsesRequest,
              response_answer.Response, (response_answer.ResponseEvent,), _CALL, errors=_GENERATE),
    Operation("get", "/v1/streams/{call}", "Go on with a stream that broke, behind the frame of Last-Event-ID",
              events=(chat_answer.ChatChunk, completion_answer.CompletionResponse, response_answer.ResponseEvent),
              headers=("Last-Event-ID",), errors=(400, 401, 404, 409, 429, 500, 503)),
    Operation("post", "/v1/embeddings", "Vectors of texts", embedding_types.EmbeddingRequest,
              embedding_types.EmbeddingResponse, errors=_GENERATE),
    Operation("get", "/v1/models", "The base model and its adapters", answer=model_types.ModelList),
    Operation("get", "/v1/models/{model}", "One of them", answer=model_types.ModelCard, errors=(401, 404)),
    Operation("post", "/v1/load_lora_adapter", "Load an adapter", model_types.LoadAdapter, errors=(*_READ, 403)),
    Operation("post", "/v1/unload_lora_adapter", "Forget an adapter", model_types.UnloadAdapter, errors=(*_READ, 403)),
    Operation("get", "/lora-adapters", "The adapters with their weights", answer=list[model_types.AdapterEntry]),
    Operation("post", "/lora-adapters", "Lay adapters on the base model", list[model_types.AdapterScale],
              model_types.Success, errors=_READ),
    Operation("post", "/tokenize", "A text or a conversation to tokens", _TOKENIZE,
              token_types.TokenizeResponse, errors=_READ),
    Operation("post", "/detokenize", "Tokens to a text", token_types.DetokenizeRequest,
              token_types.DetokenizeResponse, errors=_READ),
    Operation("get", "/health", "Whether the server lives", answer=state_types.Health, is_open=True, errors=(503,)),
    Operation("get", "/ready", "Whether it takes calls", answer=state_types.Ready, is_open=True, errors=(503,)),
    Operation("get", "/version", "What it is", answer=state_types.Version, errors=(401,)),
    Operation("get", "/load", "How busy it is", answer=state_types.Load, errors=(401,)),
    Operation("get", "/metrics", "Counts and times for Prometheus", errors=(401,)),
    Operation("get", "/openapi.json", "This document", answer=dict[str, Any], errors=(401,)),
)  # fmt: skip
"""All routes of the server."""

BESIDE = (messages.Message, tools.Tool, responses.ResponseTool, response_input.InputMessage, response_input.InputCall,
          response_input.InputCallOutput, response_input.InputReasoning, ErrorBody)  # fmt: skip
"""Types that other schemas name, and that are in no field."""

_MEANINGS = {
    400: "the body is not valid, or a parameter is not",
    401: "there is no key, or it is not known",
    403: "the key may not do this",
    404: "there is no such model, or the key may not use it",
    408: "the body, or what was asked for, took too long",
    409: "the same call is being answered, or another model, adapter or engine would answer it now",
    413: "the body is too large",
    415: "the body is not said to be JSON",
    422: "the Idempotency-Key came with another call before",
    429: "too many requests wait, or the key has used up its share",
    500: "the server failed",
    501: "this server has not what the call needs",
    503: "the server is loading, stopping, or lacks memory",
}
_WAITS = (429, 503)


@cache
def document(takes_all: bool = False) -> bytes:
    """Return the document as JSON. takes_all: whether parameters are taken that are unknown."""
    types = [kind for one in OPERATIONS for kind in (one.body, one.answer, *one.events) if kind is not None]
    schemas, components = msgspec.json.schema_components([*types, *BESIDE], ref_template="#/components/schemas/{name}")
    bodies = {_struct(one.body).__name__ for one in OPERATIONS if one.body is not None}
    components = {
        name: described(schema, is_body=name in bodies, takes_all=takes_all) for name, schema in components.items()
    }
    known = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        body, answer = (next(known) if kind is not None else None for kind in (one.body, one.answer))
        events = [next(known) for _ in one.events]
        paths.setdefault(one.path, {})[one.method] = _operation(one, body, answer, events)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "INF-ENG",
                "version": __version__,
                "description": "An OpenAI-compatible server; every adapter is a model.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "/"}],
            "security": [{"key": []}, {}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "key": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "Where the server was given keys; none is needed otherwise.",
                    }
                },
            },
        }
    )


def _struct(body: Any) -> Any:
    """Return the struct that a body is, or that its items are."""
    return _struct(get_args(body)[0]) if get_args(body) else body


def _operation(one: Operation, body: Any, answer: Any, events: Sequence[Any]) -> dict[str, Any]:
    content: dict[str, Any] = {JSON: {"schema": answer}} if answer is not None else {}
    described = "done"
    if events:
        content[EVENTS] = {"schema": _event(events)}
        described = "the answer; with stream: true, server-sent events, each as the second schema says"
    elif answer is None:
        content[TEXT] = {"schema": {"type": "string"}}
    found: dict[str, Any] = {
        "summary": one.summary,
        "operationId": f"{one.method}_{re.sub(r'[^a-z0-9]+', '_', one.path).strip('_')}",
        "responses": {"200": {"description": described, "content": content}, **_errors(one.errors)},
    }
    if body is not None:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    names = re.findall(r"\{(\w+)\}", one.path)
    given = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    given += [{"name": name, "in": "header", **_HEADERS[name]} for name in one.headers]
    if given:
        found["parameters"] = given
    if one.is_open:
        found["security"] = []
    return found


def _event(data: Sequence[Any]) -> dict[str, Any]:
    """Return the schema of an event whose data is JSON of one of these schemas, an error, or the end mark."""
    kinds = [*data, {"$ref": "#/components/schemas/ErrorBody"}]
    text = {"type": "string", "contentMediaType": JSON, "contentSchema": {"anyOf": kinds}}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {
            "data": {"anyOf": [{"const": "[DONE]"}, text]},
            "event": {"type": "string", "description": "the type of its data, where that has one"},
            "id": {"type": "string", "description": "for Last-Event-ID, where streams go on"},
        },
    }


def _errors(statuses: Sequence[int]) -> Mapping[str, Any]:
    schema = {"$ref": "#/components/schemas/ErrorBody"}
    found: dict[str, Any] = {}
    for status in sorted(statuses):
        found[str(status)] = {"description": _MEANINGS[status], "content": {JSON: {"schema": schema}}}
        if status in _WAITS:
            found[str(status)]["headers"] = {
                "Retry-After": {"description": "seconds to wait", "schema": {"type": "integer"}},
                "retry-after-ms": {"description": "the same in milliseconds", "schema": {"type": "integer"}},
            }
    return found
