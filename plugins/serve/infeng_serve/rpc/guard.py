"""Authentication and parsing: every method except the health checks needs an API key in the metadata, as with HTTP.

A message that cannot be parsed is refused as the client's error, not as a failure of the server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from grpc_health.v1 import health

from infeng_serve.auth import NOBODY, Caller
from infeng_serve.failures import unauthenticated
from infeng_serve.observers import Record
from infeng_serve.protocol.errors import ApiError
from infeng_serve.rpc.call import SERVICE, Rpc
from infeng_serve.rpc.status import refuse
from infeng_serve.service import Service

OPEN = (f"/{health.SERVICE_NAME}/", f"/{SERVICE}/HealthCheck")
"""Path prefixes of methods that need no key."""

CALLER: ContextVar[Caller] = ContextVar("caller", default=NOBODY)
"""The caller of the current call."""


class Guard(aio.ServerInterceptor):  # type: ignore[misc]  # it has no types
    """Authenticates calls."""

    def __init__(self, service: Service) -> None:
        """Use the keys of ``service``."""
        self._service = service

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Return a call's handler: its method, or one that refuses it."""
        handler = await continuation(details)
        if handler is None:
            return handler
        handler = _careful(handler)
        if details.method.startswith(OPEN):
            return handler
        given = dict(details.invocation_metadata).get("authorization")
        caller = self._service.keys.caller(given.encode() if isinstance(given, str) else given)
        if caller is None:
            return self._refusal(handler, details.method, given is not None)
        CALLER.set(caller)
        return handler

    def _refusal(self, handler: Any, method: str, is_given: bool) -> Any:
        """Return a handler of the same kind that refuses the call without reading its request."""

        async def refused(_: Any, context: Any) -> None:
            call = Rpc(context, method, NOBODY)
            for observer in self._service.observers:
                record = Record(call.id, method, "", "", client=call.client, wall=call.wall, arrived=call.arrived)
                record.status = 401
                observer.rejected(record, "unauthorized")
            await refuse(context, unauthenticated(is_given))

        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(refused)
        return (grpc.unary_stream_rpc_method_handler if handler.response_streaming
                else grpc.unary_unary_rpc_method_handler)(refused)  # fmt: skip


_UNREADABLE = object()
"""Stands for a message that cannot be parsed."""


def _careful(handler: Any) -> Any:
    """Return a handler that refuses a message it cannot parse; handlers of request streams are returned as they are."""
    if handler.request_streaming or handler.request_deserializer is None:
        return handler
    name = "unary_stream" if handler.response_streaming else "unary_unary"
    parse, method = handler.request_deserializer, getattr(handler, name)

    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return _UNREADABLE

    async def answered(request: Any, context: Any) -> Any:
        if request is _UNREADABLE:
            await refuse(context, ApiError(400, "The message cannot be parsed.", code="invalid_message"))
        return await method(request, context)

    return handler._replace(request_deserializer=parsed, **{name: answered})
