"""Errors as clients know them: a status and OpenAI's ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class ApiError(Exception):
    """Ends a request with a status; in a stream that has begun, with an event of the same body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """status: of HTTP. param: the parameter at fault, by its path. code: for programs, such as model_not_found."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers)

    def body(self) -> bytes:
        """Return the error as JSON."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})
