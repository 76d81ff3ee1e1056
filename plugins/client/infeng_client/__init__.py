"""A client of INF-ENG servers, and of others that speak OpenAI's protocol. It needs nothing of the engine."""

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
from infeng_client.version import __version__

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
