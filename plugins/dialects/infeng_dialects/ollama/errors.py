"""Errors in Ollama's form: ``{"error": message}``."""

from __future__ import annotations

import msgspec
from infeng_serve.api import ApiError


class OllamaError(msgspec.Struct, kw_only=True):
    """The body of every error response, and of the last line of a failed stream."""

    error: str


def body(error: ApiError) -> bytes:
    """Return an error as JSON."""
    return msgspec.json.encode(OllamaError(error=error.message))
