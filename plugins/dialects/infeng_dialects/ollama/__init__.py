"""Ollama's routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from infeng_serve.api import Route
from infeng_serve.api.dialects import GENERATE, READ, Operation, handler
from msgspec import Meta

from infeng_dialects.ollama import embedding, information, reading
from infeng_dialects.ollama.answer import KIND, OllamaResponse
from infeng_dialects.ollama.errors import OllamaError, body
from infeng_dialects.ollama.parameters import (
    NAMED,
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    OllamaChatRequest,
    ShowRequest,
)

_SHOW = Annotated[ShowRequest, Meta(extra_json_schema=NAMED)]
_CALL = ("Idempotency-Key",)


def routes(settings: Mapping[str, Any]) -> dict[str, Route]:
    """Return the routes."""
    operations = (
        Operation("post", "/api/generate", "Answer or complete a text, as Ollama", GenerateRequest, OllamaResponse,
                  (OllamaResponse,), _CALL, errors=GENERATE, error=OllamaError, kind=KIND.decode()),
        Operation("post", "/api/chat", "Answer a conversation, as Ollama", OllamaChatRequest, OllamaResponse,
                  (OllamaResponse,), _CALL, errors=GENERATE, error=OllamaError, kind=KIND.decode()),
        Operation("post", "/api/embed", "Embed texts, as Ollama", EmbedRequest, embedding.EmbedResponse,
                  errors=GENERATE, error=OllamaError),
        Operation("post", "/api/embeddings", "Embed a text, as Ollama", EmbeddingsRequest, embedding.EmbeddingsResponse,
                  errors=GENERATE, error=OllamaError),
        Operation("get", "/api/tags", "List the models, as Ollama", answer=information.ListedModels, error=OllamaError),
        Operation("post", "/api/show", "Describe a model, as Ollama", _SHOW, information.Shown, errors=READ,
                  error=OllamaError),
        Operation("get", "/api/ps", "List the models in memory, as Ollama", answer=information.ListedModels,
                  error=OllamaError),
        Operation("get", "/api/version", "The server's version, as Ollama", answer=information.OllamaVersion,
                  error=OllamaError),
    )  # fmt: skip
    handlers = {
        "/api/generate": handler(reading.read_generate),
        "/api/chat": handler(reading.read_chat),
        "/api/embed": embedding.several,
        "/api/embeddings": embedding.one,
        "/api/tags": information.tags,
        "/api/show": information.show,
        "/api/ps": information.ps,
        "/api/version": information.version,
    }
    return {
        one.path: Route({one.method.upper(): handlers[one.path]}, error_form=body, operations=(one,))
        for one in operations
    }
