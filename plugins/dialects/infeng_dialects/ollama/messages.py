"""Conversion of Ollama's messages to messages of chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from infeng_serve.api.dialects import MOST_MESSAGES, check_length, convert, invalid, not_supported

MOST_CALLS = 1024
"""Most calls of one turn."""

ROLES = ("system", "user", "assistant", "tool")


class OllamaFunction(msgspec.Struct, kw_only=True):
    """A called function."""

    name: str
    arguments: dict[str, Any] = {}


class OllamaCall(msgspec.Struct, kw_only=True):
    """A call that an assistant made."""

    function: OllamaFunction
    id: str | None = None


class OllamaTurn(msgspec.Struct, kw_only=True):
    """One message of a request."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


def messages(turns: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a conversation as messages of chat; raises ApiError.

    Calls have no ids there, and results name their function: ids are made, and results matched in their order.
    """
    check_length(turns, MOST_MESSAGES, "messages")
    found: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []  # (name, id) of calls without a result
    made = 0
    for index, given in enumerate(turns):
        path = f"messages[{index}]"
        turn = convert(given, OllamaTurn, path)
        if turn.role not in ROLES:
            raise invalid(f"{path}.role", f"{path}.role: {turn.role!r:.80} is none of {', '.join(ROLES)}")
        if turn.images:
            raise not_supported(f"{path}.images", "the model reads texts: leave them out")
        message: dict[str, Any] = {"role": turn.role, "content": turn.content or ""}
        if turn.thinking:
            message["reasoning_content"] = message["reasoning"] = turn.thinking
        if turn.tool_calls:
            check_length(turn.tool_calls, MOST_CALLS, f"{path}.tool_calls")
            waiting = []
            calls = []
            for call in turn.tool_calls:
                made += 1
                id = call.id or f"call{made:05d}"
                waiting.append((call.function.name, id))
                arguments = msgspec.json.encode(call.function.arguments).decode()
                function = {"name": call.function.name, "arguments": arguments}
                calls.append({"id": id, "type": "function", "function": function})
            message |= {"tool_calls": calls, "content": turn.content or None}
        if turn.role == "tool":
            message["tool_call_id"] = turn.tool_call_id or _answered(waiting, turn.tool_name)
            if turn.tool_name:
                message["name"] = turn.tool_name
        found.append(message)
    return found


def _answered(waiting: list[tuple[str, str]], name: str | None) -> str:
    """Return the id of the call that a result answers, and take it from those that wait."""
    for entry in waiting:
        if name is None or entry[0] == name:
            waiting.remove(entry)
            return entry[1]
    return ""
