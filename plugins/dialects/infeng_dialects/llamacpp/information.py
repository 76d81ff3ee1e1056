"""/props, /slots, /apply-template, and embeddings in llama.cpp's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from infeng_serve.api import Call, Caller, Service
from infeng_serve.api.dialects import (
    ChatRequest,
    Context,
    EmbeddingRequest,
    Model,
    answer_with,
    decode,
    embed,
    invalid,
    not_supported,
    prompt_of,
    unavailable,
)
from numpy.typing import NDArray

from infeng_core.api import __version__
from infeng_dialects.llamacpp.parameters import LlamaEmbeddingRequest, TemplateRequest


class Prompt(msgspec.Struct, kw_only=True):
    """A rendered conversation."""

    prompt: str


class Slot(msgspec.Struct, kw_only=True):
    """A place for one running request; the requests of others are not shown."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool


class LlamaEmbedding(msgspec.Struct, kw_only=True):
    """The vector of one text."""

    index: int
    embedding: list[list[float]]


class Props(msgspec.Struct, kw_only=True):
    """Properties of the server and its model."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    modalities: dict[str, bool]
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool = False


async def props(service: Service, call: Call) -> None:
    """Answer the properties."""
    model = service.model
    engine, tokenizer = model.engine, model.engine.tokenizer
    found = Props(
        default_generation_settings={"n_ctx": model.context, "params": dict(model.defaults)},
        total_slots=engine.config.scheduler.max_running,
        model_alias=model.name,
        model_path=str(engine.config.model.path) if call.caller.is_admin else model.name,
        modalities={"vision": False, "audio": False},
        bos_token=_spelled(tokenizer, tokenizer.bos_id),
        eos_token=_spelled(tokenizer, tokenizer.eos_id),
        build_info=f"infeng {__version__}",
    )
    await call.respond(200, msgspec.json.encode(found))


async def slots(service: Service, call: Call) -> None:
    """Answer the places; with ``fail_on_no_slot=1`` in the query 503 while none is free."""
    model = service.model
    engine = model.engine
    running, most = engine.load().running, engine.config.scheduler.max_running
    if running >= most and b"fail_on_no_slot=1" in call.scope.get("query_string", b"").split(b"&"):
        raise unavailable("All slots are processing.", 1.0, code="no_slot")
    drafts = engine.config.speculation.use not in (None, "", "none")
    found = [
        Slot(id=number, n_ctx=model.context, speculative=drafts, is_processing=number < running)
        for number in range(most)
    ]
    await call.respond(200, msgspec.json.encode(found))


async def apply_template(service: Service, call: Call) -> None:
    """Answer a rendered conversation."""
    await answer_with(service, call, _applied)


def _applied(model: Model, caller: Caller, context: Context, body: bytes) -> bytes:
    given = decode(body, TemplateRequest, context.ignored)
    context.adapter_of(given.model or context.model)
    asked = ChatRequest(
        messages=given.messages,
        tools=given.tools,
        add_generation_prompt=given.add_generation_prompt,
        chat_template_kwargs=given.chat_template_kwargs,
    )
    if asked.messages and given.add_generation_prompt is None and _is_prefilled(asked.messages[-1]):
        asked.continue_final_message = True
    return msgspec.json.encode(Prompt(prompt=prompt_of(asked, context, len(body)).text))


def _is_prefilled(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant" and not message.get("tool_calls")


class Embedding:
    """A call of /embedding or /embeddings."""

    def read(self, body: bytes, context: Context) -> EmbeddingRequest:
        """Return the texts."""
        given = decode(body, LlamaEmbeddingRequest, context.ignored)
        if given.encoding_format not in (None, "float"):
            raise not_supported("encoding_format", "give float, or call /v1/embeddings")
        texts = given.input if given.input is not None else given.content
        if texts is None:
            raise invalid("input", "missing parameter input", "missing_required_parameter")
        return EmbeddingRequest(model=given.model, input=texts)

    def render(self, vectors: Sequence[NDArray[np.float32]], tokens: int, name: str) -> bytes:
        """Return the response body."""
        found = [LlamaEmbedding(index=index, embedding=[vector.tolist()]) for index, vector in enumerate(vectors)]
        return msgspec.json.encode(found)


async def embedding(service: Service, call: Call) -> None:
    """Answer a vector for each text, of length 1."""
    await embed(service, call, Embedding())


def _spelled(tokenizer: Any, token: int | None) -> str:
    spelled = getattr(tokenizer, "token_bytes", None)
    return "" if token is None or spelled is None else spelled(token).decode(errors="replace")
