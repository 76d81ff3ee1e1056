"""A route of the server: ``POST /length`` with ``{"text": "..."}`` answers how many tokens a text has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from infeng_serve.api import ApiError, Call, Route, Service

from infeng_core.api import hookimpl


async def length(most: int, service: Service, call: Call) -> None:
    """Answer one call; what takes long is done on one of the server's threads."""
    with service.taken(call.caller):
        body = await service.body(call)
        count = await service.readers.run(call.caller.tenant, lambda: count_of(body, most, service))
    await call.respond(200, json.dumps({"tokens": count}).encode())


def count_of(body: bytes, most: int, service: Service) -> int:
    """Return the tokens of a body's text; whatever is wrong with it is the client's error."""
    try:
        text = json.loads(body)["text"]
    except (ValueError, KeyError, TypeError):
        raise ApiError(400, 'The body is no {"text": "..."}.') from None
    if not isinstance(text, str) or len(text) > most:
        raise ApiError(400, f"text is no text of at most {most} characters.", param="text")
    return len(service.model.engine.tokenize(text))


@hookimpl(optionalhook=True)
def infeng_serve_routes(settings: Mapping[str, Any]) -> dict[str, Route]:
    """Return the route."""
    return {"/length": Route({"POST": partial(length, settings["most"])})}
