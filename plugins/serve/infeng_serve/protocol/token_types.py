"""Bodies of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from infeng_serve.protocol.messages import MESSAGES


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /tokenize: a prompt, llama.cpp's content, or messages that the chat template renders."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: Annotated[bool | None, Meta(description="with the beginning-of-text token")] = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False
    tools: Annotated[list[Any], Meta(extra_json_schema={"items": {"$ref": "#/components/schemas/Tool"}})] = []
    chat_template_kwargs: dict[str, Any] | None = None
    content: Annotated[str | None, Meta(description="llama.cpp's prompt, with the next three parameters")] = None
    add_special: Annotated[bool, Meta(description="with the beginning-of-text token")] = False
    parse_special: Annotated[bool, Meta(description="special tokens in the content are tokens")] = True
    with_pieces: Annotated[bool, Meta(description="tokens are objects with id and piece")] = False


EITHER: dict[str, Any] = {
    "oneOf": [
        {
            "required": [name],
            "properties": {
                **{other: {"type": "null"} for other in ("prompt", "messages", "content") if other != name},
                name: MESSAGES if name == "messages" else {"type": "string"},
            },
        }
        for name in ("prompt", "messages", "content")
    ]
}
"""JSON Schema of the rule that one of prompt, messages and content is given."""


class TokenPiece(msgspec.Struct, kw_only=True):
    """A token in llama.cpp's form."""

    id: int
    piece: Annotated[str | list[int], Meta(description="its text, or the bytes of a part of a character")]


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """The tokens."""

    count: int
    max_model_len: int
    tokens: list[int | TokenPiece]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], Meta(extra_json_schema={"items": {"type": "integer", "minimum": 0}})]


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    """The text."""

    prompt: str
    content: Annotated[str, Meta(description="the same by llama.cpp's name")]
