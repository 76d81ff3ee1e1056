"""One call by gRPC, as observers and the engine have to know it."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import unquote

from infeng_serve.auth import Caller
from infeng_serve.http import own_id, request_id

SERVICE = "vllm.grpc.engine.VllmEngine"

ID = "x-request-id"

MODEL = "model"
"""Metadata that choose an adapter: the published request has no field for it."""


class Rpc:
    """One call; see ``infeng_serve.generating.Asked``."""

    def __init__(self, context: Any, path: str, caller: Caller, given_id: str = "") -> None:
        """context: of grpc.aio. path: such as /package.Service/Method. given_id: what the request says of its id."""
        self.arrived = time.perf_counter()
        self.wall = time.time()
        self.path = path
        self.caller = caller
        self._metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        self.own_id = own_id()
        self.id = request_id((given_id or self._metadata.get(ID, "")).encode(), self.own_id)
        self.client = address(context.peer())

    def header(self, name: bytes) -> str:
        """Return a text of the metadata, "" without it."""
        return self._metadata.get(name.decode("ascii"), "")


def address(peer: str) -> str:
    """Return the address of ``ipv4:127.0.0.1:4711`` or ``ipv6:%5B::1%5D:4711``."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer
