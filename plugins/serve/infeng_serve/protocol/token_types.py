"""Bodies of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of /tokenize: a prompt, or messages that the chat template renders."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: Annotated[bool | None, Meta(description="with the beginning-of-text token")] = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False
    tools: list[dict[str, Any]] = []
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """The tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of /detokenize."""

    model: str | None = None
    tokens: list[int]


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    """The text."""

    prompt: str
