"""The generating routes: each is a protocol module with ``read(body, context) -> Answer``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from infeng_serve.app import Handler, Route
from infeng_serve.generating import STREAMS, Read, generate, resume
from infeng_serve.http import Call
from infeng_serve.service import Service

MODULES = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
}
"""Paths to modules below ``infeng_serve.protocol``."""


def route(read: Read) -> Route:
    """Return a route whose bodies ``read`` converts to answers."""

    async def answered(service: Service, call: Call) -> None:
        await generate(service, call, read)

    handler: Handler = answered
    return Route({"POST": handler})


def described(document: Callable[[bool], bytes]) -> Route:
    """Return the route of the OpenAPI document."""

    async def answered(service: Service, call: Call) -> None:
        await call.respond(200, document(service.settings.unknown_parameters == "ignore"))

    handler: Handler = answered
    return Route({"GET": handler})


def routes() -> dict[str, Route]:
    """Return the generating routes and those of streams and the OpenAPI document."""
    found = {}
    if find_spec("infeng_serve.protocol.openapi") is not None:
        found["/openapi.json"] = described(importlib.import_module("infeng_serve.protocol.openapi").document)
    reads = {}
    for path, name in MODULES.items():
        module = f"infeng_serve.protocol.{name}"
        if find_spec(module) is not None:
            reads[path] = importlib.import_module(module).read
    found |= {path: route(read) for path, read in reads.items()}
    found[STREAMS] = resumed(reads)
    return found


def resumed(reads: Mapping[str, Read]) -> Route:
    """Return the route that resumes streams. reads: by the paths of calls."""

    async def answered(service: Service, call: Call) -> None:
        await resume(service, call, reads)

    handler: Handler = answered
    return Route({"GET": handler})
