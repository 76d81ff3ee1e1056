"""/metrics, for Prometheus."""

from __future__ import annotations

import asyncio

from infeng_serve.http import Call
from infeng_serve.observability.exposition import wants_openmetrics
from infeng_serve.observability.families import OPENMETRICS, TEXT
from infeng_serve.observability.metrics import Metrics
from infeng_serve.protocol.errors import ApiError
from infeng_serve.service import Service


async def metrics(service: Service, call: Call) -> None:
    """Answer the metrics; the key must be allowed to see all tenants."""
    _ = service.model
    if not call.caller.may_watch:
        raise ApiError(403, "This key may not see figures of other tenants.", type="permission_error")
    found = next((observer for observer in service.observers if isinstance(observer, Metrics)), None)
    if found is None:
        raise ApiError(404, "This server keeps no metrics.", code="not_found")
    is_open = wants_openmetrics(call.header(b"accept"))
    kind = OPENMETRICS if is_open else TEXT
    body = await asyncio.to_thread(found.collect().render, is_open)  # tens of milliseconds, with many tenants
    await call.respond(200, body, kind=kind.encode("ascii"))
