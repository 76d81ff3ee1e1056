"""One gRPC call, with the properties that observers and the engine use."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import unquote

from infeng_serve.auth import Caller
from infeng_serve.http import own_id, request_id

SERVICE = "vllm.grpc.engine.VllmEngine"

ID = "x-request-id"

MODEL = "model"
"""Metadata key of the adapter, for which the published request has no field."""


class Rpc:
    """One call; see ``infeng_serve.generating.Asked``."""

    def __init__(self, context: Any, path: str, caller: Caller, given_id: str = "") -> None:
        """context: grpc.aio's. path: such as /package.Service/Method. given_id: the id in the request."""
        self.arrived = time.perf_counter()
        self.wall = time.time()
        self.path = path
        self.caller = caller
        self._metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        self.own_id = own_id()
        self.id = request_id((given_id or self._metadata.get(ID, "")).encode(), self.own_id)
        self.client = address(context.peer())
        self.is_started = False  # an error can be sent at any time, in the trailing metadata

    def header(self, name: bytes) -> str:
        """Return a value of the metadata, "" if it is absent."""
        return self._metadata.get(name.decode("ascii"), "")


def address(peer: str) -> str:
    """Return the address in a peer such as ``ipv4:127.0.0.1:4711`` or ``ipv6:%5B::1%5D:4711``."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer
