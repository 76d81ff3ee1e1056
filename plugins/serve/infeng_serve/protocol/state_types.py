"""Bodies of the routes that tell how the server is."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Health(msgspec.Struct, kw_only=True):
    """The server lives."""

    status: str


class Version(msgspec.Struct, kw_only=True):
    """What the server is."""

    version: str


class Load(msgspec.Struct, kw_only=True):
    """How busy the server is."""

    server_load: Annotated[int, Meta(description="calls that are being answered")]
    running: Annotated[int, Meta(description="requests that run")]
    waiting: Annotated[int, Meta(description="requests that wait")]
