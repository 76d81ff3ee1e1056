"""Bodies of the small routes."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from infeng_serve.protocol.errors import ApiError

_T = TypeVar("_T")


def decoded(kind: type[_T], body: bytes) -> _T:
    """Return a body as ``kind``; raises ApiError 400 that says what is wrong, and where."""
    try:
        body.decode("utf-8")
        return msgspec.json.decode(body, type=kind)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"The body is not UTF-8 (byte {error.start}).", code="invalid_json") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, f"The body is not as it has to be: {error}.", code="invalid_json") from None
