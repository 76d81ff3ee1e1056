"""The OpenAPI 3.1 document, generated from the structs that decode and encode bodies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
from infeng_serve.protocol.operation import GENERATE, READ, Operation
from infeng_serve.protocol.unknown_parameters import described

TEXT = "text/plain"
JSON = "application/json"
EVENTS = "text/event-stream"


_TOKENIZE = Annotated[token_types.TokenizeRequest, msgspec.Meta(extra_json_schema=token_types.EITHER)]
_CALL = ("Idempotency-Key",)

_HEADERS: Mapping[str, Any] = {
    "Idempotency-Key": {
        "description": "a repeated call with the same key gets the same answer",
        "schema": {"type": "string", "maxLength": MOST_CHARACTERS},
    },
    "Last-Event-ID": {
        "description": "id of the last frame that the client has; without it the stream starts over",
        "schema": {"type": "string"},
    },
}

OPERATIONS = (
    Operation("post", "/v1/completions", "Complete a text", completions.CompletionRequest,
              completion_answer.CompletionResponse, (completion_answer.CompletionResponse,), _CALL, errors=GENERATE),
    Operation("post", "/v1/chat/completions", "Answer a conversation", chat.ChatRequest, chat_answer.ChatResponse,
              (chat_answer.ChatChunk,), _CALL, errors=GENERATE),
    Operation("post", "/v1/responses", "Answer a conversation, with items and events", responses.ResponsesRequest,
              response_answer.Response, (response_answer.ResponseEvent,), _CALL, errors=GENERATE),
    Operation("get", "/v1/streams/{call}", "Resume a broken stream after the frame of Last-Event-ID",
              events=(chat_answer.ChatChunk, completion_answer.CompletionResponse, response_answer.ResponseEvent),
              headers=("Last-Event-ID",), errors=(400, 401, 404, 409, 429, 500, 503)),
    Operation("post", "/v1/embeddings", "Embed texts", embedding_types.EmbeddingRequest,
              embedding_types.EmbeddingResponse, errors=GENERATE),
    Operation("get", "/v1/models", "List the base model and its adapters", answer=model_types.ModelList),
    Operation("get", "/v1/models/{model}", "Describe one model", answer=model_types.ModelCard, errors=(401, 404)),
    Operation("post", "/v1/load_lora_adapter", "Load an adapter", model_types.LoadAdapter, errors=(*READ, 403)),
    Operation("post", "/v1/unload_lora_adapter", "Unload an adapter", model_types.UnloadAdapter, errors=(*READ, 403)),
    Operation("get", "/lora-adapters", "List the adapters with their weights", answer=list[model_types.AdapterEntry]),
    Operation("post", "/lora-adapters", "Merge adapters into the base model", list[model_types.AdapterScale],
              model_types.Success, errors=READ),
    Operation("post", "/tokenize", "Tokenize a text or a conversation", _TOKENIZE,
              token_types.TokenizeResponse, errors=READ),
    Operation("post", "/detokenize", "Convert tokens to text", token_types.DetokenizeRequest,
              token_types.DetokenizeResponse, errors=READ),
    Operation("get", "/health", "Whether the server is alive", answer=state_types.Health, is_open=True, errors=(503,)),
    Operation("get", "/ready", "Whether it accepts calls", answer=state_types.Ready, is_open=True, errors=(503,)),
    Operation("get", "/version", "The server's version and startup times", answer=state_types.Version, errors=(401,)),
    Operation("get", "/load", "The server's load", answer=state_types.Load, errors=(401,)),
    Operation("get", "/metrics", "Metrics for Prometheus", errors=(401,)),
    Operation("get", "/openapi.json", "This document", answer=dict[str, Any], errors=(401,)),
)  # fmt: skip
"""All routes of the server."""

BESIDE = (messages.Message, tools.Tool, responses.ResponseTool, response_input.InputMessage, response_input.InputCall,
          response_input.InputCallOutput, response_input.InputReasoning, ErrorBody)  # fmt: skip
"""Types that schemas refer to by name and that no field has."""

_MEANINGS = {
    400: "the body or a parameter is invalid",
    401: "the API key is missing or unknown",
    403: "the key may not do this",
    404: "there is no such model, or the key may not use it",
    408: "sending the body or computing the answer took too long",
    409: "the same call is being answered, or its answer would differ with the current model, adapter or engine",
    413: "the body is too large",
    415: "the content type is not JSON",
    422: "the Idempotency-Key belongs to another call",
    429: "too many requests wait, or the key has reached its limit",
    500: "the server failed",
    501: "this server does not support the call",
    503: "the server is loading, shutting down, or out of memory",
}
_WAITS = (429, 503)


@cache
def document(takes_all: bool = False, more: tuple[Operation, ...] = ()) -> bytes:
    """Return the document as JSON. takes_all: whether unknown parameters are accepted. more: plugins' routes."""
    operations = (*OPERATIONS, *more)
    types = [kind for one in operations for kind in (one.body, one.answer, *one.events) if kind is not None]
    errors = list(dict.fromkeys(one.error for one in operations))
    beside = [*BESIDE, *dict.fromkeys(kind for one in more for kind in one.beside)]
    schemas, components = msgspec.json.schema_components(
        [*types, *errors, *beside], ref_template="#/components/schemas/{name}"
    )
    forms = dict(zip(errors, schemas[len(types) :], strict=False))
    bodies = {_struct(one.body).__name__ for one in operations if one.body is not None}
    components = {
        name: described(schema, is_body=name in bodies, takes_all=takes_all) for name, schema in components.items()
    }
    known = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        body, answer = (next(known) if kind is not None else None for kind in (one.body, one.answer))
        events = [next(known) for _ in one.events]
        paths.setdefault(one.path, {})[one.method] = _operation(one, body, answer, events, forms[one.error])
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
            "security": [{"key": []}, {"header": []}, {}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "key": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "Needed if the server has API keys.",
                    },
                    "header": {
                        "type": "apiKey",
                        "in": "header",
                        "name": "X-Api-Key",
                        "description": "Another header for the same key.",
                    },
                },
            },
        }
    )


def _struct(body: Any) -> Any:
    """Return the struct of a body, or of its items."""
    return _struct(get_args(body)[0]) if get_args(body) else body


def _operation(one: Operation, body: Any, answer: Any, events: Sequence[Any], error: Any) -> dict[str, Any]:
    content: dict[str, Any] = {JSON: {"schema": answer}} if answer is not None else {}
    described = "done"
    if events:
        content[one.kind] = {"schema": _event(events, error) if one.kind == EVENTS else {"anyOf": [*events, error]}}
        kind = "server-sent events" if one.kind == EVENTS else "lines"
        described = f"the answer; as a stream, {kind} of the second schema"
    elif answer is None:
        content[TEXT] = {"schema": {"type": "string"}}
    found: dict[str, Any] = {
        "summary": one.summary,
        "operationId": f"{one.method}_{re.sub(r'[^a-z0-9]+', '_', one.path).strip('_')}",
        "responses": {"200": {"description": described, "content": content}, **_errors(one.errors, error)},
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


def _event(data: Sequence[Any], error: Any) -> dict[str, Any]:
    """Return the schema of an event whose data has one of these schemas, or is an error or the end marker."""
    kinds = [*data, error]
    text = {"type": "string", "contentMediaType": JSON, "contentSchema": {"anyOf": kinds}}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {
            "data": {"anyOf": [{"const": "[DONE]"}, text]},
            "event": {"type": "string", "description": "the type of the data, if it has one"},
            "id": {"type": "string", "description": "for Last-Event-ID, if streams can be resumed"},
        },
    }


def _errors(statuses: Sequence[int], schema: Any) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for status in sorted(statuses):
        found[str(status)] = {"description": _MEANINGS[status], "content": {JSON: {"schema": schema}}}
        if status in _WAITS:
            found[str(status)]["headers"] = {
                "Retry-After": {"description": "seconds to wait", "schema": {"type": "integer"}},
                "retry-after-ms": {"description": "the same in milliseconds", "schema": {"type": "integer"}},
            }
    return found
