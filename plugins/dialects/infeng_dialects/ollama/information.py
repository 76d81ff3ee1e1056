"""/api/tags, /api/show, /api/ps and /api/version: the base model and its adapters as models."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from infeng_serve.api import Call, Caller, Service
from infeng_serve.api.dialects import Context, Model, answer_with, decode

from infeng_core.api import AdapterInfo, __version__
from infeng_dialects import fim
from infeng_dialects.ollama import names
from infeng_dialects.ollama.parameters import ShowRequest

FOREVER = "9999-12-31T23:59:59Z"
"""When a loaded model is unloaded: never."""


class Details(msgspec.Struct, kw_only=True):
    """Properties of a model."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class Listed(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A model that the key may use."""

    name: str
    model: str
    modified_at: str | None = None
    size: int
    digest: str
    details: Details
    expires_at: str | None = None
    size_vram: int | None = None
    context_length: int | None = None


class ListedModels(msgspec.Struct, kw_only=True):
    """The body of /api/tags and /api/ps."""

    models: list[Listed]


class Shown(msgspec.Struct, kw_only=True):
    """The body of /api/show."""

    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(msgspec.Struct, kw_only=True):
    """The server's version."""

    version: str


async def tags(service: Service, call: Call) -> None:
    """List the models that the caller may use."""
    model = service.model
    modified = _stamp(model.created)
    found = [
        Listed(name=name, model=name, modified_at=modified, size=size, digest=digest, details=_details(model, parent))
        for name, parent, size, digest, _ in _all(model, call.caller)
    ]
    await call.respond(200, msgspec.json.encode(ListedModels(models=found)))


async def ps(service: Service, call: Call) -> None:
    """List those of them that are in memory."""
    model = service.model
    found = [
        Listed(name=name, model=name, size=size, digest=digest, details=_details(model, parent), expires_at=FOREVER,
               size_vram=0, context_length=model.context)
        for name, parent, size, digest, is_loaded in _all(model, call.caller)
        if is_loaded
    ]  # fmt: skip
    await call.respond(200, msgspec.json.encode(ListedModels(models=found)))


async def version(service: Service, call: Call) -> None:
    """Answer the server's version."""
    await call.respond(200, msgspec.json.encode(OllamaVersion(version=__version__)))


async def show(service: Service, call: Call) -> None:
    """Describe a model."""
    await answer_with(service, call, shown)


def shown(model: Model, caller: Caller, context: Context, body: bytes) -> bytes:
    """Return the body of /api/show; raises ApiError."""
    given = decode(body, ShowRequest, context.ignored)
    name, adapter = names.found(given.model or given.name or "", context)
    config = model.engine.model.config
    architecture = config.family
    facts = {
        "general.architecture": architecture,
        "general.basename": name,
        f"{architecture}.context_length": model.context,
        f"{architecture}.embedding_length": config.hidden,
        f"{architecture}.block_count": config.layers,
        f"{architecture}.feed_forward_length": config.intermediate,
        f"{architecture}.attention.head_count": config.heads,
        f"{architecture}.attention.head_count_kv": config.kv_heads,
        f"{architecture}.vocab_size": config.vocab,
    }
    can = ["completion", "tools", "embedding", *(["insert"] if fim.tokens(context.tokenizer) else [])]
    recommended = "\n".join(f"{key} {value}" for key, value in model.defaults.items() if isinstance(value, int | float))
    parent = model.name if isinstance(adapter, str) else ""
    found = Shown(
        modelfile=f"FROM {model.name}\n", parameters=recommended, template="", details=_details(model, parent),
        model_info=facts, capabilities=can, modified_at=_stamp(model.created),
    )  # fmt: skip
    return msgspec.json.encode(found)


def _all(model: Model, caller: Caller) -> Iterator[tuple[str, str, int, str, bool]]:
    """Yield each model's name, parent, bytes in memory, digest, and whether it is in memory."""
    engine = model.engine
    for name in model.names:
        yield name, "", engine.model.nbytes, engine.model.id, True
    infos: dict[str, AdapterInfo] = {info.name: info for info in engine.adapters.infos()}
    for name, inner in model.adapters.visible(caller).items():
        info = infos.get(inner)
        if info is not None:
            yield name, model.name, info.bytes or 0, info.id or "", info.state == "resident"


def _details(model: Model, parent: str) -> Details:
    config = model.engine.model.config
    return Details(
        parent_model=parent,
        format="infeng",
        family=config.family,
        families=[config.family],
        parameter_size="",
        quantization_level=str(model.engine.config.model.format),
    )


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds or time.time(), UTC).isoformat().replace("+00:00", "Z")
