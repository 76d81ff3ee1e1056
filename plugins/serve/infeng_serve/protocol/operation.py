"""An entry of the OpenAPI document: one method of one path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infeng_serve.protocol.errors import ErrorBody

GENERATE = (400, 401, 404, 408, 409, 413, 415, 422, 429, 500, 501, 503)
"""Statuses of errors of generating routes."""

READ = (400, 401, 404, 408, 413, 415, 503)
"""Statuses of errors of other routes with a body."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    summary: str
    body: Any = None
    """Type of the request body."""
    answer: Any = None
    """Type of the response body; None for plain text."""
    events: tuple[Any, ...] = ()
    """Types of events, if the operation streams."""
    headers: tuple[str, ...] = ()
    """Request headers that change the answer."""
    is_open: bool = False
    """Whether the operation needs no API key."""
    errors: tuple[int, ...] = (401, 429)
    beside: tuple[Any, ...] = ()
    """Types that its schemas refer to by name and that no field has."""
    error: Any = ErrorBody
    """Type of the body of errors."""
    kind: str = "text/event-stream"
    """Content type of the stream."""
