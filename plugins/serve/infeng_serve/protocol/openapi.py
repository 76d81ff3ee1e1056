"""The OpenAPI 3.1 document, made of the very structs that bodies are read into and written from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from infeng_core.api import __version__
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
    events: Any = None
    """Type of its stream's events, where it streams."""
    is_open: bool = False
    """Whether it needs no key."""
    errors: tuple[int, ...] = (401, 429)


_GENERATE = (400, 401, 404, 409, 413, 422, 429, 500, 503)
_READ = (400, 401, 404, 413)

OPERATIONS = (
    Operation("post", "/v1/completions", "Go on with a text", completions.CompletionRequest,
              completion_answer.CompletionResponse, completion_answer.CompletionResponse, errors=_GENERATE),
    Operation("post", "/v1/chat/completions", "Answer a conversation", chat.ChatRequest, chat_answer.ChatResponse,
              chat_answer.ChatChunk, errors=_GENERATE),
    Operation("post", "/v1/responses", "Answer a conversation, with items and events", responses.ResponsesRequest,
              response_answer.Response, response_answer.ResponseEvent, errors=_GENERATE),
    Operation("get", "/v1/streams/{call}", "Go on with a stream that broke, behind the frame of Last-Event-ID",
              events=chat_answer.ChatChunk, errors=(400, 401, 404, 409, 429, 500, 503)),
    Operation("post", "/v1/embeddings", "Vectors of texts", embedding_types.EmbeddingRequest,
              embedding_types.EmbeddingResponse, errors=_GENERATE),
    Operation("get", "/v1/models", "The base model and its adapters", answer=model_types.ModelList),
    Operation("get", "/v1/models/{model}", "One of them", answer=model_types.ModelCard, errors=(401, 404)),
    Operation("post", "/v1/load_lora_adapter", "Load an adapter", model_types.LoadAdapter, errors=(*_READ, 403)),
    Operation("post", "/v1/unload_lora_adapter", "Forget an adapter", model_types.UnloadAdapter, errors=(*_READ, 403)),
    Operation("get", "/lora-adapters", "The adapters with their weights", answer=list[model_types.AdapterEntry]),
    Operation("post", "/lora-adapters", "Lay adapters on the base model", list[model_types.AdapterScale],
              model_types.Success, errors=_READ),
    Operation("post", "/tokenize", "A text or a conversation to tokens", token_types.TokenizeRequest,
              token_types.TokenizeResponse, errors=_READ),
    Operation("post", "/detokenize", "Tokens to a text", token_types.DetokenizeRequest,
              token_types.DetokenizeResponse, errors=_READ),
    Operation("get", "/health", "Whether the server lives", answer=state_types.Health, is_open=True, errors=(503,)),
    Operation("get", "/ready", "Whether it takes calls", answer=state_types.Health, is_open=True, errors=(503,)),
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
    409: "the same call is being answered, or another model or adapter would answer it now",
    413: "the body is too large",
    422: "the Idempotency-Key came with another call before",
    429: "too many requests wait, or the key has used up its share",
    500: "the server failed",
    503: "the server is loading, stopping, or lacks memory",
}
_WAITS = (429, 503)


@cache
def document() -> bytes:
    """Return the document as JSON."""
    types = [kind for one in OPERATIONS for kind in (one.body, one.answer, one.events) if kind is not None]
    schemas, components = msgspec.json.schema_components([*types, *BESIDE], ref_template="#/components/schemas/{name}")
    known = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        body, answer, events = (
            next(known) if kind is not None else None for kind in (one.body, one.answer, one.events)
        )
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


def _operation(one: Operation, body: Any, answer: Any, events: Any) -> dict[str, Any]:
    content: dict[str, Any] = {TEXT: {"schema": {"type": "string"}}} if answer is None else {JSON: {"schema": answer}}
    described = "done"
    if events is not None:
        content[EVENTS] = {"schema": events}
        described = "the answer; with stream: true, server-sent events whose data are the second schema, one by one"
        if one.path != "/v1/responses":
            described += ", and at last `[DONE]`"
    found: dict[str, Any] = {
        "summary": one.summary,
        "operationId": f"{one.method}_{re.sub(r'[^a-z0-9]+', '_', one.path).strip('_')}",
        "responses": {"200": {"description": described, "content": content}, **_errors(one.errors)},
    }
    if body is not None:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    names = re.findall(r"\{(\w+)\}", one.path)
    if names:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if one.is_open:
        found["security"] = []
    return found


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
