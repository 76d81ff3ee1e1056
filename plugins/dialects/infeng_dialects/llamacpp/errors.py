"""Errors as llama.cpp has them: ``{"error": {"code", "message", "type"}}``, where the code is the status."""

from __future__ import annotations

import msgspec
from infeng_serve.api import ApiError

_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 501: "not_supported_error",
    503: "unavailable_error",
}  # fmt: skip


class LlamaDetail(msgspec.Struct, kw_only=True):
    """An error's status, message and type."""

    code: int
    message: str
    type: str


class LlamaError(msgspec.Struct, kw_only=True):
    """The body of every error response."""

    error: LlamaDetail


def body(error: ApiError) -> bytes:
    """Return an error as JSON."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    if error.code == "context_length_exceeded":
        kind = "exceed_context_size_error"
    return msgspec.json.encode(LlamaError(error=LlamaDetail(code=error.status, message=error.message, type=kind)))
