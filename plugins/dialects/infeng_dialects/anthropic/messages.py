"""Conversion of Anthropic's messages, whose contents are blocks, to messages of chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from infeng_serve.api.dialects import MOST_MESSAGES, check_length, convert, invalid, not_supported

from infeng_dialects.anthropic.parameters import TextBlock

Message = dict[str, Any]

_UNREAD = "it is not read: the model reads texts; leave it out, or describe it in a text"


class Turn(msgspec.Struct, kw_only=True):
    """One message."""

    role: str
    content: str | list[Any]


class Block(msgspec.Struct, kw_only=True):
    """A part of a content; which fields there are depends on its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    source: dict[str, Any] | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: str | list[Any] | None = None
    is_error: bool | None = None


def messages(turns: Sequence[Any], system: str | Sequence[TextBlock] | None) -> list[Message]:
    """Return a conversation as messages of chat; raises ApiError."""
    if not turns:
        raise invalid("messages", "messages: there is none")
    check_length(turns, MOST_MESSAGES, "messages")
    found: list[Message] = []
    if system:
        text = system if isinstance(system, str) else "\n".join(block.text for block in system)
        found.append({"role": "system", "content": text})
    for index, given in enumerate(turns):
        path = f"messages[{index}]"
        turn = convert(given, Turn, path)
        if turn.role == "assistant":
            found.append(_assistant(_blocks(turn, path), f"{path}.content"))
        elif turn.role in ("user", "system"):
            found += _user(_blocks(turn, path), f"{path}.content", turn.role)
        else:
            raise invalid(f"{path}.role", f"{path}.role: {turn.role!r:.80} is none of user, assistant, system")
    return found


def _blocks(turn: Turn, path: str) -> list[Block]:
    if isinstance(turn.content, str):
        return [Block(type="text", text=turn.content)]
    check_length(turn.content, MOST_MESSAGES, f"{path}.content")
    return [convert(one, Block, f"{path}.content[{index}]") for index, one in enumerate(turn.content)]


def _user(blocks: Sequence[Block], path: str, role: str) -> list[Message]:
    """Return a user's turn: results of tools first, then the text."""
    results: list[Message] = []
    texts: list[str] = []
    for index, block in enumerate(blocks):
        place = f"{path}[{index}]"
        if block.type == "tool_result":
            results.append(_result(block, place))
        else:
            texts.append(_text(block, place))
    if not blocks:
        raise invalid(path, f"{path}: it is empty")
    return [*results, *([{"role": role, "content": "\n".join(texts)}] if texts else [])]


def _assistant(blocks: Sequence[Block], path: str) -> Message:
    """Return an assistant's turn: reasoning, text and calls."""
    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        place = f"{path}[{index}]"
        if block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            calls.append(_call(block, place))
        elif block.type != "redacted_thinking":  # which has nothing to read
            texts.append(_text(block, place))
    message: Message = {"role": "assistant", "content": "\n".join(texts) if texts or not calls else None}
    if thought := "".join(thoughts):
        message["reasoning_content"] = message["reasoning"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Block, path: str) -> dict[str, Any]:
    if not block.name:
        raise invalid(f"{path}.name", f"missing parameter {path}.name", "missing_required_parameter")
    if not isinstance(block.input, Mapping):
        raise invalid(f"{path}.input", f"{path}.input: it is not an object", "invalid_type")
    arguments = msgspec.json.encode(block.input).decode()
    return {"id": block.id or "", "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _result(block: Block, path: str) -> Message:
    if block.tool_use_id is None:
        raise invalid(f"{path}.tool_use_id", f"missing parameter {path}.tool_use_id", "missing_required_parameter")
    text = block.content or ""
    if not isinstance(text, str):
        parts = [convert(one, Block, f"{path}.content[{index}]") for index, one in enumerate(text)]
        text = "\n".join(_text(part, f"{path}.content[{index}]") for index, part in enumerate(parts))
    if block.is_error:
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}


def _text(block: Block, path: str) -> str:
    """Return the text of a block; raises ApiError for one without text, such as an image."""
    if block.type == "text":
        if block.text is None:
            raise invalid(f"{path}.text", f"missing parameter {path}.text", "missing_required_parameter")
        return block.text
    if block.type == "document" and block.source is not None and block.source.get("type") == "text":
        data = block.source.get("data")
        if isinstance(data, str):
            return data
    raise not_supported(f"{path}.type", f"{block.type[:64]!r}: {_UNREAD}")
