"""A client for INF-ENG servers and other servers with OpenAI's API. It does not need the engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from infeng_client.version import __version__

if TYPE_CHECKING:
    from infeng_client.aio import AsyncClient
    from infeng_client.aio_stream import AsyncStream
    from infeng_client.client import Client
    from infeng_client.errors import (
        ApiError,
        BadRequestError,
        BrokenStreamError,
        ConnectionFailedError,
        NotFoundError,
        OverloadedError,
        ServerError,
        TimedOutError,
        UnauthorizedError,
    )
    from infeng_client.results import (
        Choice,
        Chunk,
        Completion,
        Embeddings,
        Health,
        Model,
        TokenLogprob,
        ToolCall,
        Usage,
    )
    from infeng_client.retries import Retries
    from infeng_client.stream import Stream

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncStream",
    "BadRequestError",
    "BrokenStreamError",
    "Choice",
    "Chunk",
    "Client",
    "Completion",
    "ConnectionFailedError",
    "Embeddings",
    "Health",
    "Model",
    "NotFoundError",
    "OverloadedError",
    "Retries",
    "ServerError",
    "Stream",
    "TimedOutError",
    "TokenLogprob",
    "ToolCall",
    "UnauthorizedError",
    "Usage",
    "__version__",
]

_HOMES = {
    "ApiError": "errors",
    "AsyncClient": "aio",
    "AsyncStream": "aio_stream",
    "BadRequestError": "errors",
    "BrokenStreamError": "errors",
    "Choice": "results",
    "Chunk": "results",
    "Client": "client",
    "Completion": "results",
    "ConnectionFailedError": "errors",
    "Embeddings": "results",
    "Health": "results",
    "Model": "results",
    "NotFoundError": "errors",
    "OverloadedError": "errors",
    "Retries": "retries",
    "ServerError": "errors",
    "Stream": "stream",
    "TimedOutError": "errors",
    "TokenLogprob": "results",
    "ToolCall": "results",
    "UnauthorizedError": "errors",
    "Usage": "results",
}
"""Modules of the public names, imported at first use: not every ``infeng run`` needs httpx."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"infeng_client.{_HOMES[name]}"), name)
