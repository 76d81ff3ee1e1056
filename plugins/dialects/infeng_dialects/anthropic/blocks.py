"""Blocks of an answer in Anthropic's form, from the deltas that the parser of answers finds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from infeng_chat.template import Delta, ToolDelta

SIGNATURE = "unsigned"
"""The signature of thinking blocks, which clients send back: the server trusts and needs none."""

Event = tuple[str, dict[str, Any]]
"""The type of an event of a stream, and its other fields."""


class Blocks:
    """The blocks of one answer: thinking, text and tool_use, each open until another begins."""

    def __init__(self, *, shows_thinking: bool) -> None:
        """shows_thinking: whether a thinking block has its text."""
        self.content: list[dict[str, Any]] = []
        """The blocks so far; ``input`` of a call is text until ``settle``."""
        self._shows_thinking = shows_thinking
        self._tool = -1  # index of the open block's call

    def push(self, deltas: Iterable[Delta]) -> list[Event]:
        """Add deltas; return their events."""
        found: list[Event] = []
        for delta in deltas:
            if delta.reasoning:
                found += self._more("thinking", "thinking", delta.reasoning if self._shows_thinking else "")
            if delta.content:
                found += self._more("text", "text", delta.content)
            if delta.tool is not None:
                found += self._call(delta.tool)
        return found

    def end(self) -> list[Event]:
        """Close the open block; return its events."""
        if not self.content:
            return []
        at: dict[str, Any] = {"index": len(self.content) - 1}
        found: list[Event] = [("content_block_stop", at)]
        if self.content[-1]["type"] == "thinking":
            self.content[-1]["signature"] = SIGNATURE
            found.insert(
                0, ("content_block_delta", {**at, "delta": {"type": "signature_delta", "signature": SIGNATURE}})
            )
        return found

    def settle(self) -> list[dict[str, Any]]:
        """Return the blocks of a complete answer."""
        for block in self.content:
            if block["type"] == "tool_use":
                block["input"] = _input(block["input"])
        return self.content

    def _more(self, kind: str, field: str, text: str) -> list[Event]:
        found: list[Event] = []
        if not self.content or self.content[-1]["type"] != kind:
            found += self._open({"type": kind, field: "", **({"signature": ""} if kind == "thinking" else {})})
        if text:
            self.content[-1][field] += text
            found.append(self._delta({"type": f"{kind}_delta", field: text}))
        return found

    def _call(self, tool: ToolDelta) -> list[Event]:
        found: list[Event] = []
        if tool.id is not None or tool.index != self._tool:
            self._tool = tool.index
            found += self._open({"type": "tool_use", "id": tool.id or "", "name": tool.name or "", "input": {}})
            self.content[-1]["input"] = ""
        if tool.arguments:
            self.content[-1]["input"] += tool.arguments
            found.append(self._delta({"type": "input_json_delta", "partial_json": tool.arguments}))
        return found

    def _open(self, block: dict[str, Any]) -> list[Event]:
        ended = self.end()
        self.content.append(dict(block))
        return [*ended, ("content_block_start", {"index": len(self.content) - 1, "content_block": block})]

    def _delta(self, delta: dict[str, Any]) -> Event:
        return "content_block_delta", {"index": len(self.content) - 1, "delta": delta}


def _input(text: str) -> Any:
    """Return a call's arguments; {} if they were cut off."""
    try:
        return msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}
