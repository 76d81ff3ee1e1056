"""Bodies of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from infeng_serve.protocol.messages import MESSAGES


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /tokenize: a prompt, or messages that the chat template renders."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: Annotated[bool | None, Meta(description="with the beginning-of-text token")] = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False
    tools: Annotated[list[Any], Meta(extra_json_schema={"items": {"$ref": "#/components/schemas/Tool"}})] = []
    chat_template_kwargs: dict[str, Any] | None = None


EITHER: dict[str, Any] = {
    "oneOf": [
        {"required": ["prompt"], "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}},
        {"required": ["messages"], "properties": {"messages": MESSAGES, "prompt": {"type": "null"}}},
    ]
}
"""JSON Schema of the rule that either a prompt or messages are given."""


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """The tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], Meta(extra_json_schema={"items": {"type": "integer", "minimum": 0}})]


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    """The text."""

    prompt: str
