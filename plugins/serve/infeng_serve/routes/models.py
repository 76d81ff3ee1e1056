"""/v1/models: the base model and each adapter as a model."""

from __future__ import annotations

from pathlib import Path

import msgspec

from infeng_core.api import AdapterError
from infeng_serve.auth import Caller
from infeng_serve.http import Call
from infeng_serve.model import Model
from infeng_serve.protocol.errors import ApiError
from infeng_serve.protocol.model_types import ModelCard, ModelList
from infeng_serve.service import Service

PREFIX = "/v1/models/"


async def listed(service: Service, call: Call) -> None:
    """Answer all models that the caller may use."""
    await call.respond(200, msgspec.json.encode(ModelList(data=_cards(service.model, call.caller))))


async def one(service: Service, call: Call) -> None:
    """Answer one model."""
    wanted = call.path.removeprefix(PREFIX)
    card = next((card for card in _cards(service.model, call.caller) if card.id == wanted), None)
    if card is None:
        raise ApiError(404, f"The model {wanted[:200]!r} does not exist.", param="model", code="model_not_found")
    await call.respond(200, msgspec.json.encode(card))


def _cards(model: Model, caller: Caller) -> list[ModelCard]:
    base = [_card(model, name, root=model.name, parent=None) for name in model.names]
    found = []
    for name, inner in model.adapters.visible(caller).items():
        try:
            source = model.engine.adapters[inner].source
        except AdapterError:  # unloaded meanwhile
            continue
        found.append(_card(model, name, root=_root(source, caller), parent=model.name))
    return base + found


def _card(model: Model, id: str, root: str, parent: str | None) -> ModelCard:
    return ModelCard(id=id, created=model.created, root=root, parent=parent, max_model_len=model.context)


def _root(source: str, caller: Caller) -> str:
    """Return an adapter's source; only admins see local paths."""
    return source if caller.is_admin or not source.startswith("/") else Path(source).name
