"""Use of httpx common to both clients: requests, timeouts, errors and responses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from infeng_client.errors import ApiError, ConnectionFailedError, ServerError, TimedOutError
from infeng_client.results import Health, Json
from infeng_client.sending import Reply, Send
from infeng_client.version import __version__

T = TypeVar("T")
DEFAULT: Any = object()
"""Stands for the client's own timeout, since None means no limit."""
CONNECT = 10.0
"""Timeout for connecting, in seconds."""
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30.0)
"""Limits of the connection pool: none, since callers bound the number of calls (``complete_many``)."""


def request_of(http: httpx.Client | httpx.AsyncClient, step: Send, base: str, api_key: str | None) -> httpx.Request:
    """Return a call as a request of httpx, whose timeouts are the remaining time of the call."""
    headers = {"user-agent": f"infeng-client/{__version__}", "accept": "application/json, text/event-stream"}
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"
    return http.build_request(
        step.call.method,
        base + step.call.path,
        content=step.call.content(),
        headers=headers | dict(step.call.headers),
        timeout=httpx.Timeout(step.left, connect=CONNECT if step.left is None else min(step.left, CONNECT)),
    )


def as_error(error: httpx.RequestError, base: str, *, begun: bool = False) -> ApiError:
    """Convert an error of httpx. begun: whether a part of the answer had arrived."""
    if isinstance(error, httpx.ConnectTimeout):
        return ConnectionFailedError(f"{base}: no connection in time")
    if isinstance(error, httpx.TimeoutException):
        return TimedOutError(None, f"{base}: the call took longer than its timeout")
    return ConnectionFailedError(f"{base}: {str(error) or type(error).__name__}", begun=begun)


def reply_of(response: httpx.Response, body: bytes) -> Reply:
    """Return a response as data."""
    return Reply(response.status_code, {name.lower(): value for name, value in response.headers.items()}, body)


def read(reply: Reply, reader: Callable[[Json], T]) -> T:
    """Parse a reply with ``reader``; raises ServerError if the reply has an unexpected form."""
    raw = reply.json()
    try:
        return reader(raw)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ServerError(reply.status, f"the server's answer has an unexpected form: {error!r}") from error


def read_health(reply: Reply) -> Health:
    """Parse the response of ``/health``, in any server's form."""
    try:
        raw = json.loads(reply.body)
    except ValueError:
        raw = None
    fields = raw if isinstance(raw, dict) else {}
    error = fields.get("error")
    words = error.get("message") if isinstance(error, dict) else fields.get("status")
    return Health(reply.status < 400, str(words or ("ok" if reply.status < 400 else f"status {reply.status}")), fields)
