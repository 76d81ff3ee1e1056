"""Bodies of the routes that tell how the server is."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Health(msgspec.Struct, kw_only=True):
    """The server lives."""

    status: str


class Ready(Health, kw_only=True, omit_defaults=True):
    """The server takes calls."""

    journal: Annotated[str | None, Meta(description="why calls are not written to the journal, where they are not")] = (
        None
    )


class Version(msgspec.Struct, kw_only=True):
    """What the server is."""

    version: str
    startup_ms: Annotated[dict[str, float], Meta(description="milliseconds that each phase of the start took")]


class Load(msgspec.Struct, kw_only=True):
    """How busy the server is."""

    server_load: Annotated[float, Meta(description="requests that there are")]
    running: Annotated[float, Meta(description="requests that run")]
    waiting: Annotated[float, Meta(description="requests that wait")]
    kv_cache_usage: Annotated[float, Meta(description="share of the cache blocks that somebody needs")]
    predicted_wait_seconds: Annotated[float, Meta(description="until the first token of one more request")]
