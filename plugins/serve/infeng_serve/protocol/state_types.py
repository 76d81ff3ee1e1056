"""Bodies of the routes for the server's state."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Health(msgspec.Struct, kw_only=True):
    """The server is alive."""

    status: str


class Ready(Health, kw_only=True, omit_defaults=True):
    """The server accepts calls."""

    journal: Annotated[str | None, Meta(description="why calls are not written to the journal, if so")] = None


class Version(msgspec.Struct, kw_only=True):
    """The server's version and startup times."""

    version: str
    startup_ms: Annotated[dict[str, float], Meta(description="milliseconds that each phase of the start took")]


class Load(msgspec.Struct, kw_only=True):
    """The server's load."""

    server_load: Annotated[float, Meta(description="requests that run or wait")]
    running: Annotated[float, Meta(description="requests that run")]
    waiting: Annotated[float, Meta(description="requests that wait")]
    kv_cache_usage: Annotated[float, Meta(description="share of the KV blocks in use by requests")]
    predicted_wait_seconds: Annotated[float, Meta(description="until the first token of one more request")]
