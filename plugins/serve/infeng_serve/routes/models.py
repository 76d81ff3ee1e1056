"""/v1/models: the base model and each adapter as a model, a page at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl

import msgspec

from infeng_core.api import AdapterError
from infeng_serve.auth import Caller
from infeng_serve.http import Call
from infeng_serve.model import Model
from infeng_serve.protocol.errors import ApiError, invalid
from infeng_serve.protocol.model_types import ModelCard, ModelList
from infeng_serve.service import Service

PREFIX = "/v1/models/"

MOST_LISTED = 1000
"""Models of one page."""

MOST_FIELDS = 8
"""Fields of a query; of those beside ``limit`` and ``after`` nothing is said."""


async def listed(service: Service, call: Call) -> None:
    """Answer the models that the caller may use, a page at a time: ``?limit=N&after=ID``."""
    limit, after = _page(call)
    page = await service.readers.run(call.caller.tenant, partial(_models, service.model, call.caller, after, limit))
    await call.respond(200, msgspec.json.encode(page))


async def one(service: Service, call: Call) -> None:
    """Answer one model."""
    card = _found(service.model, call.caller, call.path.removeprefix(PREFIX))
    await call.respond(200, msgspec.json.encode(card))


def _page(call: Call) -> tuple[int, str]:
    """Return the most models of a page, and the id after which it begins; raises ApiError."""
    try:
        query = dict(parse_qsl(call.scope["query_string"].decode("ascii"), max_num_fields=MOST_FIELDS))
    except ValueError:
        raise invalid("query", "The query is not of the form ?limit=N&after=ID.") from None
    text = query.get("limit", str(MOST_LISTED))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:8]) <= MOST_LISTED):
        raise invalid("limit", f"It is not a whole number from 1 to {MOST_LISTED}.")
    return int(text), query.get("after", "")


def _models(model: Model, caller: Caller, after: str, limit: int) -> ModelList:
    """Return a page of models, the base's names first."""
    names = list(model.names)
    if after in names:
        names, after = names[names.index(after) + 1 :], ""
    elif after:
        names = []
    cards = [_card(model, name, root=model.name, parent=None) for name in names[:limit]]
    left = limit - len(cards)
    adapters, has_more = model.adapters.listed(caller, after, max(1, left))
    if not left:  # of the adapters, it only matters whether there are any
        adapters, has_more = [], len(names) > limit or bool(adapters)
    cards += _of_adapters(model, caller, adapters)
    last = adapters[-1][0] if adapters else names[limit - 1] if has_more else None
    return ModelList(data=cards, has_more=has_more, last_id=last if has_more else None)


def _of_adapters(model: Model, caller: Caller, adapters: Iterable[tuple[str, str]]) -> Iterator[ModelCard]:
    for name, inner in adapters:
        with contextlib.suppress(AdapterError):  # unloaded meanwhile, or not to be used
            root = _root(model.engine.adapters[inner].source, caller)
            yield _card(model, name, root=root, parent=model.name)


def _found(model: Model, caller: Caller, wanted: str) -> ModelCard:
    """Return the card of one model; raises ApiError 404."""
    if wanted in model.names:
        return _card(model, wanted, root=model.name, parent=None)
    with contextlib.suppress(ApiError):
        inner = model.adapters.of(caller, wanted)
        if isinstance(inner, str):
            found = list(_of_adapters(model, caller, [(wanted, inner)]))
            if found:
                return found[0]
    raise ApiError(404, f"The model {wanted[:200]!r} does not exist.", param="model", code="model_not_found")


def _card(model: Model, id: str, root: str, parent: str | None) -> ModelCard:
    card = ModelCard(id=id, created=model.created, root=root, parent=parent, max_model_len=model.context)
    if parent is None and model.defaults:
        card.defaults = dict(model.defaults)
    return card


def _root(source: str, caller: Caller) -> str:
    """Return an adapter's source; only admins see local paths."""
    return source if caller.is_admin or not source.startswith("/") else Path(source).name
