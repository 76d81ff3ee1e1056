"""Routes for the server's state: liveness, readiness, version and load."""

from __future__ import annotations

import msgspec

from infeng_core.api import __version__
from infeng_serve.http import Call
from infeng_serve.observability.load import load_values
from infeng_serve.protocol.errors import unavailable
from infeng_serve.protocol.state_types import Load, Ready, Version
from infeng_serve.service import Service

STALLED_SECONDS = 10.0
"""Retry-After of /ready while a step of the engine hangs, in seconds."""


async def health(service: Service, call: Call) -> None:
    """Answer 503 while the model is being loaded, then 200, also while the server shuts down."""
    _ = service.model
    await call.respond(200, b'{"status":"ok"}')


async def ready(service: Service, call: Call) -> None:
    """Answer 200 while calls are accepted; 503 before and after, and while a step of the engine hangs.

    The body also says why the journal cannot be written, if so.
    """
    service.check_open()
    if service.model.engine.stall is not None:
        raise unavailable("A step of the engine does not end.", STALLED_SECONDS, code="stalled")
    trouble = service.journal.trouble
    told = Ready(status="ready", journal=f"not written: {trouble}" if trouble else None)
    await call.respond(200, msgspec.json.encode(told))


async def version(service: Service, call: Call) -> None:
    """Answer the engine's version and the duration of each phase of its start."""
    taken = {phase: round(1000 * seconds, 1) for phase, seconds in service.startup.seconds.items()}
    await call.respond(200, msgspec.json.encode(Version(version=__version__, startup_ms=taken)))


async def load(service: Service, call: Call) -> None:
    """Answer the number of running and waiting requests, cache usage and the predicted wait."""
    await call.respond(200, msgspec.json.encode(Load(**load_values(service.model.engine))))
