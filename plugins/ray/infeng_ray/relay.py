"""A stream of one replica passed on to a client, and what follows if the replica is lost in its middle.

Whole frames are passed on, so that what the client has ends between two of them, and their ids tell where to go on.
"""

from __future__ import annotations

import re

import msgspec
from infeng_serve.api.hosting import ApiError, Call

from infeng_ray.upstream import LostError, Upstream

MOST_HELD = 1 << 25
"""Bytes of a frame that is not complete yet."""

_ID = re.compile(rb"(?:^|\n)id: ([^\r\n]{1,1024})\n")
_RESPONSES = "/v1/responses"


def lost() -> ApiError:
    """Return the error of a call whose replica is lost and that cannot be resumed."""
    why = (
        "The replica that computed this answer was lost. Repeat the call; with a journal (infeng ray --journal DIR) "
        "such streams are resumed."
    )
    return ApiError(502, why, type="server_error", code="replica_lost", headers={"retry-after": "1"})


def failed(path: str, error: ApiError) -> bytes:
    """Return the frames that end a begun stream with an error, in the form of its route."""
    if path == _RESPONSES:
        told = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return b"event: error\ndata: " + msgspec.json.encode(told) + b"\n\n"
    return b"data: " + error.body() + b"\n\ndata: [DONE]\n\n"


class Relay:
    """Passes the frames of one stream on."""

    def __init__(self, call: Call) -> None:
        """Pass them on to the client of ``call``, whose head must have been sent."""
        self._call = call
        self._held = b""  # the beginning of a frame
        self._last = b""  # frames that were passed on last
        self.has_sent = False
        """Whether a frame was passed on."""

    @property
    def last_id(self) -> str:
        """The id of the last frame that was passed on; "" if frames have none."""
        found = _ID.findall(self._last)
        return found[-1].decode("latin-1") if found else ""

    async def run(self, upstream: Upstream) -> None:
        """Pass on all frames until the end of the replica's answer; raises LostError if it breaks off."""
        self._held = b""
        upstream.at_once = self._at_once
        try:
            while data := await upstream.take():
                if whole := self._whole(data):
                    await self._call.write(whole)
        finally:
            upstream.at_once = None
        if self._held:
            raise LostError("the answer ends within a frame")

    def _at_once(self, data: bytes) -> bool:
        """Pass frames on without waking a task, which would double their cost."""
        if not self._call.keeps_up:
            return False
        if whole := self._whole(data):
            self._call.write_now(whole)
        return True

    def _whole(self, data: bytes) -> bytes:
        """Return the whole frames; the beginning of another one is held. A comment is passed on as it is."""
        if self._held:
            data = self._held + data
            self._held = b""
        if not data.endswith(b"\n\n"):
            if data[:1] == b":" and data.endswith(b"\n"):
                return data
            end = data.rfind(b"\n\n") + 2
            data, self._held = (data[:end], data[end:]) if end > 1 else (b"", data)
            if len(self._held) > MOST_HELD:
                raise LostError("a frame is too long")
        if data and data[:1] != b":":
            self._last, self.has_sent = data, True
        return data
