"""Errors in OpenAI's form: a status and ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from infeng_core.api import (
    AdapterError,
    EndedError,
    InfengError,
    OverloadedError,
    RequestError,
    ResourceError,
    UsageError,
    printable,
)


class ErrorDetail(msgspec.Struct, kw_only=True):
    """An error's message and its machine-readable fields."""

    message: str
    type: str
    param: str | None = None
    """Path of the wrong parameter."""
    code: str | None = None
    """Code for programs, such as model_not_found."""


class ErrorBody(msgspec.Struct, kw_only=True):
    """The body of every error response, and of the last event of a failed stream."""

    error: ErrorDetail


LONGEST = 1000
"""Most characters of a message; the middle of a longer one is left out."""


class ApiError(Exception):
    """Ends a request with an error status, or a begun stream with an event of the same body."""

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
        """status: HTTP status. param: path of the wrong parameter. code: for programs, such as model_not_found."""
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= LONGEST else printable(message, LONGEST)  # it may quote a long body
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers)

    def body(self) -> bytes:
        """Return the error as JSON."""
        detail = ErrorDetail(message=self.message, type=self.type, param=self.param, code=self.code)
        return msgspec.json.encode(ErrorBody(error=detail))


ErrorForm = Callable[[ApiError], bytes]
"""Returns the body of an error's response."""


def openai_form(error: ApiError) -> bytes:
    """Return the body of an error's response in OpenAI's form."""
    return error.body()


def invalid(param: str | None, message: str, code: str | None = "invalid_value") -> ApiError:
    """Return error 400 for one parameter. param: its path, such as ``messages[0].content``."""
    return ApiError(400, message, param=param, code=code)


def not_supported(param: str, why: str) -> ApiError:
    """Return error 400 for a parameter of OpenAI's API that this server does not support."""
    return invalid(param, f"{param}: {why}", "unsupported_parameter")


def unavailable(message: str, seconds: float, *, status: int = 503, code: str = "overloaded") -> ApiError:
    """Return the error for a call that may be retried in ``seconds``. status: 429 for the caller's own limits."""
    seconds = max(0.0, seconds) if math.isfinite(seconds) else UNKNOWN_WAIT
    headers = {"retry-after": str(max(1, math.ceil(seconds))), "retry-after-ms": str(math.ceil(seconds * 1000))}
    kind = "rate_limit_error" if status == 429 else "unavailable_error"
    return ApiError(status, message, type=kind, code=code, headers=headers)


UNKNOWN_WAIT = 60.0
"""Seconds to wait where there is no prediction."""

_PARAMS = {"adapter": "model", "adapters": "adapters", "bad_words_ids": "bad_words", "processors": "response_format"}
"""Names of parameters in requests, by the names that errors of the engine use."""

_UNKNOWN_ADAPTER = re.compile(r"adapter '.*'")
"""Beginning of the engine's error for an unknown adapter; it lists other adapters, which clients must not see."""

_NO_PARAMS = frozenset({"answer", "request", "engine", "continuation", "logit"})


def of(error: InfengError, param: str | None = None, paths: Mapping[str, str] = MappingProxyType({})) -> ApiError:
    """Convert an error of the engine for clients, without internals of the server.

    param: path of the wrong parameter, if the caller knows it better than the error. paths: paths of parameters by the
    first word of the engine's errors.
    """
    if isinstance(error, OverloadedError):
        return unavailable(str(error), error.retry_after)
    if isinstance(error, EndedError):
        return ApiError(408, str(error), param=param or "timeout", code="timeout")
    if isinstance(error, AdapterError) or (isinstance(error, RequestError) and _UNKNOWN_ADAPTER.match(error.what)):
        return ApiError(404, f"the adapter cannot be used: {error.why}", param="model", code="model_not_found")
    if isinstance(error, RequestError):
        if "context" in error.why and error.what.startswith("prompt"):
            return ApiError(400, str(error), param=param or "prompt", code="context_length_exceeded")
        known = paths.get(error.what.partition(" ")[0])
        return ApiError(400, str(error), param=param or known or _param(error.what), code="invalid_value")
    if isinstance(error, ResourceError):
        return ApiError(503, "the server has no room for this now", type="server_error", code="unavailable")
    if isinstance(error, UsageError) and error.what == "engine":  # the engine was closed meanwhile
        return shutting_down()
    if isinstance(error, UsageError):
        return ApiError(501, f"this server cannot do that: {error.why}", code="unsupported")
    return ApiError(500, "the server failed at this request", type="server_error", code="internal_error")


def shutting_down() -> ApiError:
    """Return the error for calls that arrive or have not ended when the server shuts down."""
    message, headers = "The server is shutting down.", {"connection": "close", "retry-after": "5"}
    return ApiError(503, message, type="unavailable_error", code="shutting_down", headers=headers)


def _param(what: str) -> str | None:
    word = what.partition(" ")[0]
    if word in _NO_PARAMS or not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", word):
        return None
    return _PARAMS.get(word, word)
