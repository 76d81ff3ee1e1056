"""Conversion of every error to an HTTP status and a body in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from infeng_core.api import AdapterError, InfengError, OverloadedError, UsageError, get_logger
from infeng_serve.protocol import errors
from infeng_serve.protocol.errors import ApiError

_log = get_logger(__name__)


class GoneError(Exception):
    """The client has left, so no answer can be sent."""


class LoadingError(ApiError):
    """The model is still being loaded."""

    def __init__(self) -> None:
        """Use the message that clients of other servers wait for."""
        super().__init__(503, "Loading model", type="unavailable_error", headers={"retry-after": "1"})

    def body(self) -> bytes:
        """Return the body, whose ``code`` is a number."""
        return b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'


def unauthenticated(is_given: bool) -> ApiError:
    """Return the error of a call without a key, or with an unknown one (``is_given``)."""
    why = "There is no such API key" if is_given else "An API key is missing"
    headers = {"www-authenticate": "Bearer"}
    return ApiError(401, f"{why}; send `Authorization: Bearer KEY`.", code="invalid_api_key", headers=headers)


def failure(error: BaseException, id: str = "", paths: Mapping[str, str] = MappingProxyType({})) -> ApiError:
    """Return any error as clients see it. Errors of the server are logged, and reported without details.

    paths: as in ``errors.of``.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InfengError):
        if not isinstance(error, (UsageError, AdapterError, OverloadedError)):
            _log.error("a call failed", id=id, error=str(error))
        return errors.of(error, paths=paths)
    _log.error("a call failed", id=id, exc_info=error)
    return ApiError(500, f"The server failed on this call; its log says why (request id {id}).", type="server_error")


def reason_of(error: ApiError) -> str:
    """Return the reason under which metrics count a rejection."""
    if isinstance(error, LoadingError):
        return "loading"
    words = {401: "unauthorized", 403: "forbidden", 404: "not_found", 413: "too_large", 429: "rate_limited"}
    if error.status in words:
        return words[error.status]
    if error.status >= 500:
        return error.code or "error"
    return "invalid"
