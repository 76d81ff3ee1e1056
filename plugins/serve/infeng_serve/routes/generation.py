"""The generating routes: each is a protocol module with ``read(body, context) -> Answer``."""

from __future__ import annotations

import importlib

from infeng_serve.app import Handler, Route
from infeng_serve.generating import STREAMS, generate, resume
from infeng_serve.http import Call
from infeng_serve.protocol.answer import Read
from infeng_serve.protocol.openapi import document
from infeng_serve.service import Service

MODULES = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
}
"""Paths to modules below ``infeng_serve.protocol``."""


def handler(read: Read) -> Handler:
    """Return the handler of calls whose bodies ``read`` converts to answers."""

    async def answered(service: Service, call: Call) -> None:
        await generate(service, call, read)

    return answered


def route(read: Read) -> Route:
    """Return a route whose bodies ``read`` converts to answers; its streams can be resumed."""
    return Route({"POST": handler(read)}, read=read)


async def described(service: Service, call: Call) -> None:
    """Answer the OpenAPI document."""
    takes_all = service.settings.unknown_parameters == "ignore"
    await call.respond(200, document(takes_all, tuple(service.operations)))


def routes() -> dict[str, Route]:
    """Return the generating routes and those of streams and the OpenAPI document."""
    found = {
        path: route(importlib.import_module(f"infeng_serve.protocol.{name}").read) for path, name in MODULES.items()
    }
    return {**found, "/openapi.json": Route({"GET": described}), STREAMS: Route({"GET": resume})}
