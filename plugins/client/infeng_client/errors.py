"""Errors of calls by type: refusals of the server, and failures of the connection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infeng_client.results import Completion


class ApiError(Exception):
    """A call failed. The subclasses tell the cases apart."""

    def __init__(
        self,
        status: int | None,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """status: HTTP status, None without a response. The other fields are those of the server's error body.

        type, code: for programs, such as invalid_request_error and model_not_found. param: the wrong parameter.
        request_id: the call's id in the server's log.
        """
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.request_id = request_id


class BadRequestError(ApiError):
    """The request is wrong (400 and other 4xx): a retry would fail again."""


class UnauthorizedError(ApiError):
    """The key is missing or wrong (401), or not allowed to do this (403)."""


class NotFoundError(ApiError):
    """There is no such model, adapter or route (404)."""


class OverloadedError(ApiError):
    """The server could not accept the call at present, after all retries.

    It is overloaded (429, 503), or an earlier attempt of the same call still runs (409).
    """

    def __init__(self, status: int | None, message: str, *, retry_after: float | None = None, **more: Any) -> None:
        """retry_after: seconds that the server asked to wait, None if it did not."""
        super().__init__(status, message, **more)
        self.retry_after = retry_after


class ServerError(ApiError):
    """The server failed (5xx), or its response is malformed."""


class ConnectionFailedError(ApiError):
    """The server cannot be reached, or the connection broke before the answer was complete. ``status`` is None."""

    def __init__(self, message: str, *, begun: bool = False) -> None:
        """begun: whether a part of the answer had arrived; such a call is not repeated."""
        super().__init__(None, message)
        self.begun = begun


class TimedOutError(ApiError):
    """The call took longer than its ``timeout``, retries and waits included. ``status`` is None."""


class BrokenStreamError(ApiError):
    """A stream broke and cannot be resumed; ``completion`` is the answer so far, with choices unfinished."""

    def __init__(self, message: str, completion: Completion, **more: Any) -> None:
        """completion: the answer so far."""
        super().__init__(None, message, **more)
        self.completion = completion

    @property
    def text(self) -> str:
        """The text of the first choice so far."""
        return self.completion.text


IN_USE = "idempotency_key_in_use"
"""Code of a refusal because the previous attempt, whose connection just broke, has not ended yet."""
CLASSES: Mapping[int, type[ApiError]] = {
    401: UnauthorizedError,
    403: UnauthorizedError,
    404: NotFoundError,
    429: OverloadedError,
    503: OverloadedError,
}
TYPES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "overloaded_error": 503,
    "unavailable_error": 503,
}
"""Statuses of errors within a stream, whose HTTP status was already sent, by their type."""


def refusal(status: int, headers: Mapping[str, str], body: bytes, now: float) -> ApiError:
    """Return the error of a response with status 400 or more. headers: by lower-case names. now: Unix time."""
    try:
        error = json.loads(body)["error"]
        fields = dict(error) if isinstance(error, Mapping) else {"message": str(error)}
    except (ValueError, KeyError, TypeError):
        fields = {"message": body.decode("utf-8", "replace").strip()[:1000]}
    return _error(status, fields, headers.get("x-request-id"), retry_after(headers, now))


def error_in_stream(fields: Mapping[str, Any], request_id: str | None = None) -> ApiError:
    """Return the error of a stream's event ``data: {"error": fields}``."""
    code = fields.get("code")
    known = code if isinstance(code, int) and 400 <= code < 600 else TYPES.get(str(fields.get("type")), 500)
    return _error(known, fields, request_id, None)


def _error(status: int, fields: Mapping[str, Any], request_id: str | None, seconds: float | None) -> ApiError:
    kind = CLASSES.get(status, BadRequestError if status < 500 else ServerError)
    if fields.get("code") == IN_USE:
        kind = OverloadedError
    more: dict[str, Any] = {
        name: None if fields.get(name) is None else str(fields[name]) for name in ("type", "param", "code")
    }
    if issubclass(kind, OverloadedError):
        more["retry_after"] = seconds
    return kind(status, str(fields.get("message") or f"status {status}"), request_id=request_id, **more)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that a response asks to wait (``retry-after-ms``, else ``Retry-After``), or None.

    headers: by lower-case names. now: Unix time in seconds, for a ``Retry-After`` that is a date.
    """
    milliseconds = _seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _seconds(text)
    if seconds is not None or text is None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None
