"""The route ``/replica`` of a server that is a replica: whether it is ready, its load and its adapters in memory.

It is there only if the environment has the secret of the gateway, and needs that instead of an API key: it names the
adapters of all tenants.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

import msgspec
from infeng_serve.api import ApiError, Call, Route, Service

from infeng_ray.fleet import STATE, TOKEN_HEADER, State

TOKEN = "INFENG_RAY_TOKEN"
"""Environment variable with the secret."""


def routes(environment: Mapping[str, str]) -> dict[str, Route]:
    """Return the route; none without the secret."""
    token = environment.get(TOKEN, "").encode("utf-8")
    if not token:
        return {}

    async def answered(service: Service, call: Call) -> None:
        if not hmac.compare_digest(call.header(TOKEN_HEADER).encode("utf-8"), token):
            raise ApiError(404, f"There is nothing at {STATE!r}.", code="not_found")
        await call.respond(200, msgspec.json.encode(state_of(service)))

    return {STATE: Route({"GET": answered}, is_open=True)}


def state_of(service: Service) -> State:
    """Return the state of a server; one that loads or drains is not ready."""
    if not service.is_loaded or service.is_draining:
        return State()
    engine = service.model.engine
    load = engine.load()
    resident = [info.name for info in engine.adapters.infos() if info.state == "resident"]
    return State(engine.stall is None, load.running, load.waiting, resident)
