"""Errors in gRPC's form: a code, a text, and machine-readable details in the trailing metadata."""

from __future__ import annotations

from typing import Any

from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from infeng_serve.protocol.errors import ApiError

CODES = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    429: StatusCode.RESOURCE_EXHAUSTED,
    499: StatusCode.CANCELLED,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
}
"""gRPC codes by HTTP status; other statuses are INTERNAL."""

DOMAIN = "infeng"
"""Domain of the reasons in ErrorInfo, which are the codes of HTTP's errors."""

Trailing = tuple[tuple[str, str | bytes], ...]


async def refuse(context: Any, error: ApiError) -> None:
    """End a call with an error; raises the exception that ends its handler."""
    code = CODES.get(error.status, StatusCode.INTERNAL)
    await context.abort(code, error.message, trailing_metadata=trailing(error, code))


def trailing(error: ApiError, code: StatusCode) -> Trailing:
    """Return the trailing metadata of an error: google.rpc.Status, and the time to retry after, if known.

    The status has ErrorInfo (the reason), BadRequest (the wrong field) and RetryInfo.
    """
    status = status_pb2.Status(code=code.value[0], message=error.message)
    found: list[tuple[str, str | bytes]] = []
    if error.code:
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN))
    if error.param and error.status == 400:
        fault = error_details_pb2.BadRequest.FieldViolation(field=error.param, description=error.message)
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[fault]))
    wait = error.headers.get("retry-after-ms") or _milliseconds(error.headers.get("retry-after"))
    if wait:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(int(wait))
        status.details.add().Pack(retry)
        found += [("retry-after-ms", wait), ("grpc-retry-pushback-ms", wait)]
    return (*found, ("grpc-status-details-bin", status.SerializeToString()))


def _milliseconds(seconds: str | None) -> str:
    return str(1000 * int(seconds)) if seconds else ""
