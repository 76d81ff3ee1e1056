"""Calls of tools in Ollama's form, which has each call whole."""

from __future__ import annotations

from typing import Any

import msgspec
from infeng_chat.template import ToolDelta


class OllamaCalled(msgspec.Struct, kw_only=True):
    """The called function with its arguments."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaToolCall(msgspec.Struct, kw_only=True):
    """A call in an answer."""

    id: str
    function: OllamaCalled


class Calls:
    """Collects the pieces of calls until each is complete."""

    def __init__(self) -> None:
        """Start without a call."""
        self._open: ToolDelta | None = None
        self._arguments = ""

    def push(self, piece: ToolDelta) -> list[OllamaToolCall]:
        """Add a piece; return the call before it, if it begins another one."""
        found: list[OllamaToolCall] = []
        if self._open is None or piece.index != self._open.index:
            found = self.end()
            self._open = piece
        self._arguments += piece.arguments
        return found

    def end(self) -> list[OllamaToolCall]:
        """Return the call that is collected, if there is one; arguments that were cut off are left out."""
        called, arguments = self._open, self._arguments
        self._open, self._arguments = None, ""
        if called is None:
            return []
        try:
            decoded = msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, ValueError, RecursionError):
            decoded = {}
        known = decoded if isinstance(decoded, dict) else {}
        function = OllamaCalled(index=called.index, name=called.name or "", arguments=known)
        return [OllamaToolCall(id=called.id or "", function=function)]
