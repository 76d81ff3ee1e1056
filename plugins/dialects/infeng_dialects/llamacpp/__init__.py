"""The routes of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from infeng_serve.api import Route
from infeng_serve.api.dialects import (
    GENERATE,
    READ,
    ChatChunk,
    ChatResponse,
    ModelList,
    Operation,
    list_models,
    read_chat,
    route,
)
from infeng_serve.api.dialects import ChatRequest as OpenAIChat
from msgspec import Meta

from infeng_dialects.llamacpp import information, reading
from infeng_dialects.llamacpp.answer import LlamaCompletion
from infeng_dialects.llamacpp.errors import LlamaError, body
from infeng_dialects.llamacpp.parameters import (
    TEXTS,
    InfillRequest,
    LlamaCompletionRequest,
    LlamaEmbeddingRequest,
    TemplateRequest,
)

_EMBED = Annotated[LlamaEmbeddingRequest, Meta(extra_json_schema=TEXTS)]
_CALL = ("Idempotency-Key",)


def routes(settings: Mapping[str, Any]) -> dict[str, Route]:
    """Return the routes."""
    found: dict[str, Route] = {}
    for path in ("/completion", "/completions"):
        one = Operation("post", path, "Complete a text, as llama.cpp", LlamaCompletionRequest, LlamaCompletion,
                        (LlamaCompletion,), _CALL, errors=GENERATE, error=LlamaError)  # fmt: skip
        found[path] = Route(route(reading.read).handlers, error_form=body, read=reading.read, operations=(one,))
    one = Operation("post", "/infill", "Fill in a text, as llama.cpp", InfillRequest, LlamaCompletion,
                    (LlamaCompletion,), _CALL, errors=GENERATE, error=LlamaError)  # fmt: skip
    infill = reading.read_infill
    found["/infill"] = Route(route(infill).handlers, error_form=body, read=infill, operations=(one,))
    for path in ("/embedding", "/embeddings"):
        one = Operation("post", path, "Embed texts, as llama.cpp", _EMBED,
                        list[information.LlamaEmbedding], errors=GENERATE, error=LlamaError)  # fmt: skip
        found[path] = Route({"POST": information.embedding}, error_form=body, operations=(one,))
    one = Operation("post", "/apply-template", "Render a conversation", TemplateRequest, information.Prompt,
                    errors=READ, error=LlamaError)  # fmt: skip
    found["/apply-template"] = Route({"POST": information.apply_template}, error_form=body, operations=(one,))
    one = Operation("get", "/props", "Properties of the server", answer=information.Props, error=LlamaError)
    found["/props"] = Route({"GET": information.props}, error_form=body, operations=(one,))
    one = Operation("get", "/slots", "Places for running requests", answer=list[information.Slot], error=LlamaError)
    found["/slots"] = Route({"GET": information.slots}, error_form=body, operations=(one,))
    one = Operation("post", "/chat/completions", "As /v1/chat/completions", OpenAIChat, ChatResponse,
                    (ChatChunk,), _CALL, errors=GENERATE)  # fmt: skip
    found["/chat/completions"] = Route(route(read_chat).handlers, read=read_chat, operations=(one,))
    one = Operation("get", "/models", "As /v1/models", answer=ModelList)
    found["/models"] = Route({"GET": list_models}, operations=(one,))
    return found
