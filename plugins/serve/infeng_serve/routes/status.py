"""Whether the server lives, whether it takes calls, what it is and how busy."""

from __future__ import annotations

import msgspec

from infeng_core.api import __version__
from infeng_serve.http import Call
from infeng_serve.observability.load import load_values
from infeng_serve.protocol.errors import unavailable
from infeng_serve.protocol.state_types import Load, Ready, Version
from infeng_serve.service import Service

STALLED_SECONDS = 10.0
"""After which somebody who asks whether the server is ready may ask again."""


async def health(service: Service, call: Call) -> None:
    """Answer 503 while the model is being loaded, then 200, also while the server is going."""
    _ = service.model
    await call.respond(200, b'{"status":"ok"}')


async def ready(service: Service, call: Call) -> None:
    """Answer 200 where calls are taken, 503 before and after, and while a step does not end, as the log says.

    It also says whether calls are in memory alone, because the journal cannot be written.
    """
    service.check_open()
    if service.model.engine.stall is not None:
        raise unavailable("A step of the engine does not end.", STALLED_SECONDS, code="stalled")
    trouble = service.journal.trouble
    told = Ready(status="ready", journal=f"not written: {trouble}" if trouble else None)
    await call.respond(200, msgspec.json.encode(told))


async def version(service: Service, call: Call) -> None:
    """Answer the engine's version, and where the time of its start went."""
    taken = {phase: round(1000 * seconds, 1) for phase, seconds in service.startup.seconds.items()}
    await call.respond(200, msgspec.json.encode(Version(version=__version__, startup_ms=taken)))


async def load(service: Service, call: Call) -> None:
    """Answer how many requests run and wait, how full the cache is, and how long one more would wait."""
    await call.respond(200, msgspec.json.encode(Load(**load_values(service.model.engine))))
