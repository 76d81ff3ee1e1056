"""Messages of a conversation, checked before a template renders them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from infeng_serve.protocol.bounds import MOST_MESSAGES, check_length
from infeng_serve.protocol.errors import invalid, not_supported
from infeng_serve.protocol.reading import convert

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message; only texts are read."""

    type: Annotated[
        str, Meta(description="text, or refusal of an assistant", extra_json_schema={"enum": ["text", "refusal"]})
    ]
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    """The function and arguments of an assistant's call."""

    name: str
    arguments: Annotated[str | dict[str, Any], Meta(description="JSON, as text or as it is")] = "{}"


class ToolCall(msgspec.Struct, kw_only=True):
    """A call that an assistant made."""

    id: str | None = None
    type: str = "function"
    function: FunctionCall


class Message(msgspec.Struct, kw_only=True):
    """One turn. Other fields are passed to the template."""

    role: Annotated[str, Meta(description=", ".join(ROLES), extra_json_schema={"enum": list(ROLES)})]
    content: Annotated[str | list[ContentPart] | None, Meta(description="texts of parts are joined by line breaks")] = (
        None
    )
    name: str | None = None
    tool_calls: Annotated[list[ToolCall] | None, Meta(description="of an assistant")] = None
    tool_call_id: Annotated[str | None, Meta(description="of a tool: which call it answers")] = None
    reasoning_content: Annotated[str | None, Meta(description="of an assistant, where the template shows it")] = None
    reasoning: Annotated[str | None, Meta(description="the same by its other name")] = None


MESSAGES: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "$ref": "#/components/schemas/Message",
        "anyOf": [
            {"properties": {"role": {"const": "assistant"}}},
            {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}},
        ],
    },
}
"""The JSON schema of ``messages``: only an assistant's message may lack content."""


def checked(messages: Sequence[Any], path: str = "messages") -> list[dict[str, Any]]:
    """Return messages with contents of one text each; raises ApiError with the path of the wrong field."""
    if not messages:
        raise invalid(path, f"{path}: there is none")
    check_length(messages, MOST_MESSAGES, path)
    return [_checked(message, f"{path}[{index}]") for index, message in enumerate(messages)]


def _checked(given: dict[str, Any], path: str) -> dict[str, Any]:
    message = convert(given, Message, path)
    if message.role not in ROLES:
        raise invalid(f"{path}.role", f"{path}.role: {message.role!r} is none of {', '.join(ROLES)}")
    if message.content is None and message.role != "assistant":
        raise invalid(f"{path}.content", f"missing parameter {path}.content", "missing_required_parameter")
    found = dict(given)
    if isinstance(message.content, list):
        found["content"] = "\n".join(_text(part, f"{path}.content[{i}]") for i, part in enumerate(message.content))
    found.setdefault("content", None)
    thought = message.reasoning_content or message.reasoning
    if thought is not None:
        found["reasoning_content"] = found["reasoning"] = thought
    return found


def _text(part: ContentPart, path: str) -> str:
    if part.type == "text" and part.text is not None:
        return part.text
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type in ("text", "refusal"):
        raise invalid(f"{path}.{part.type}", f"missing parameter {path}.{part.type}", "missing_required_parameter")
    raise not_supported(f"{path}.type", f"{part.type!r} is not read: the model reads texts")
