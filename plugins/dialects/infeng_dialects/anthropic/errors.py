"""Errors in Anthropic's form: ``{"type": "error", "error": {"type", "message"}}``."""

from __future__ import annotations

from typing import Literal

import msgspec
from infeng_serve.api import ApiError

_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 408: "timeout_error",
}  # fmt: skip


class AnthropicDetail(msgspec.Struct, kw_only=True):
    """An error's type and message."""

    type: str
    message: str


class AnthropicError(msgspec.Struct, kw_only=True):
    """The body of every error response, and of the last event of a failed stream."""

    type: Literal["error"] = "error"
    error: AnthropicDetail


def body(error: ApiError) -> bytes:
    """Return an error as JSON."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return msgspec.json.encode(AnthropicError(error=AnthropicDetail(type=kind, message=error.message)))
