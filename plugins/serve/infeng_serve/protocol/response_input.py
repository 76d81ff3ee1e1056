"""Conversion of the input of /v1/responses to messages. The server stores no conversations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from infeng_serve.protocol.bounds import MOST_MESSAGES, check_length
from infeng_serve.protocol.errors import invalid, not_supported
from infeng_serve.protocol.messages import ROLES
from infeng_serve.protocol.reading import convert

_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


class InputPart(msgspec.Struct, kw_only=True):
    """A part of a message or of an output; only texts are read."""

    type: Annotated[
        str, Meta(description=f"{', '.join(_TEXTS)} or refusal", extra_json_schema={"enum": [*_TEXTS, "refusal"]})
    ]
    text: str | None = None
    refusal: str | None = None


class InputMessage(msgspec.Struct, kw_only=True):
    """A turn."""

    type: Literal["message"] = "message"
    role: Annotated[str, Meta(description=", ".join(ROLES), extra_json_schema={"enum": list(ROLES)})]
    content: str | list[InputPart]


class InputCall(msgspec.Struct, kw_only=True):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class InputCallOutput(msgspec.Struct, kw_only=True):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputPart]


class InputReasoning(msgspec.Struct, kw_only=True):
    """The model's reasoning before its next turn."""

    type: Literal["reasoning"]
    summary: list[InputPart] | None = None
    content: list[InputPart] | None = None


def messages(given: str | list[Any], instructions: str | None) -> list[dict[str, Any]]:
    """Return the input as messages of chat; raises ApiError."""
    found: list[dict[str, Any]] = []
    if instructions is not None:
        found.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    if not given:
        raise invalid("input", "input: it is empty")
    check_length(given, MOST_MESSAGES, "input")
    thoughts: list[str] = []  # reasoning before the next turn
    for index, item in enumerate(given):
        path = f"input[{index}]"
        kind = item.get("type", "message") if isinstance(item, dict) else "message"
        if kind == "reasoning":
            thought = convert(item, InputReasoning, path)
            thoughts.append(_joined(thought.content or thought.summary or [], path))
            continue
        _add(found, item, kind, path)
        if (reasoning := "".join(thoughts)) and found[-1]["role"] == "assistant":
            found[-1]["reasoning_content"] = found[-1]["reasoning"] = reasoning
        thoughts.clear()
    return found


def _add(found: list[dict[str, Any]], item: Any, kind: Any, path: str) -> None:
    """Add an item to messages; the model's text and calls of one turn become one message."""
    if kind == "message":
        message = convert(item, InputMessage, path)
        if message.role not in ROLES:
            raise invalid(f"{path}.role", f"{path}.role: {message.role!r} is none of {', '.join(ROLES)}")
        found.append({"role": message.role, "content": _joined(message.content, f"{path}.content")})
    elif kind == "function_call":
        made = convert(item, InputCall, path)
        call = {"id": made.call_id, "type": "function", "function": {"name": made.name, "arguments": made.arguments}}
        if not found or found[-1]["role"] != "assistant":
            found.append({"role": "assistant", "content": None})
        found[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        result = convert(item, InputCallOutput, path)
        output = _joined(result.output, f"{path}.output")
        found.append({"role": "tool", "tool_call_id": result.call_id, "content": output})
    else:
        raise not_supported(f"{path}.type", f"{str(kind)[:64]!r} is not read here")


def _joined(given: str | list[InputPart], path: str) -> str:
    if isinstance(given, str):
        return given
    texts = []
    for index, part in enumerate(given):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in (*_TEXTS, "refusal"):
            raise not_supported(f"{path}[{index}].type", f"{part.type!r} is not read: the model reads texts")
        if text is None:
            raise invalid(f"{path}[{index}].text", f"missing parameter {path}[{index}].text",
                          "missing_required_parameter")  # fmt: skip
        texts.append(text)
    return "\n".join(texts)
