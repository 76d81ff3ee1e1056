"""Frames of completions and chat: the constant parts are encoded once, and each text is inserted between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.parameters import StreamOptions
from infeng_serve.protocol.usage import Usage


@dataclass(frozen=True, slots=True)
class Streaming:
    """Where a stream reports usage."""

    includes: bool = False
    continues: bool = False

    @classmethod
    def of(cls, options: StreamOptions | None) -> Streaming:
        """Return the reporting that a request asks for."""
        includes = bool(options and options.include_usage)
        return cls(includes, includes and bool(options and options.continuous_usage_stats))

    def usage(self, so_far: Callable[[], Usage]) -> bytes | None:
        """Return a frame's usage as JSON: null if only the last frame reports it, None if no frame does."""
        if self.continues:
            return msgspec.json.encode(so_far())
        return b"null" if self.includes else None


class Head:
    """Renders the frames of one call."""

    def __init__(self, id: str, object: str, context: Context, model: str, piece: bytes) -> None:
        """piece: the JSON key of the part that changes from frame to frame, with its colon."""
        told = {"id": id, "object": object, "created": context.created, "model": model}
        known = msgspec.json.encode(
            {**told, "system_fingerprint": context.fingerprint} if context.fingerprint else told
        )
        self._head = b"data: " + known[:-1] + b',"choices":['
        self._piece = b"," + piece
        self._heads: dict[int, bytes] = {}

    def frame(
        self,
        choice: int,
        piece: bytes,
        logprobs: bytes | None = None,
        finish_reason: str | None = None,
        stop_reason: str | None = None,
        usage: bytes | None = None,
    ) -> bytes:
        """Return a frame of one choice. piece, logprobs, usage: JSON."""
        head = self._heads.get(choice)
        if head is None:
            head = self._heads[choice] = b'%b{"index":%d%b' % (self._head, choice, self._piece)
        if logprobs is None and finish_reason is None and usage is None:  # nearly all
            return head + piece + b',"logprobs":null,"finish_reason":null}]}\n\n'
        end = b"null" if finish_reason is None else b'"%b"' % finish_reason.encode()
        if stop_reason is not None:
            end += b',"stop_reason":"%b"' % stop_reason.encode()
        told = b"" if usage is None else b',"usage":' + usage
        return b'%b%b,"logprobs":%b,"finish_reason":%b}]%b}\n\n' % (head, piece, logprobs or b"null", end, told)

    def last(self, usage: bytes) -> bytes:
        """Return the frame with the usage and without choices."""
        return self._head + b'],"usage":' + usage + b"}\n\n"
