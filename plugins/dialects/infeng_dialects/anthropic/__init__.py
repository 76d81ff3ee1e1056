"""Anthropic's routes: ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infeng_serve.api import Route
from infeng_serve.api.dialects import GENERATE, READ, Operation, route

from infeng_dialects.anthropic import counting, reading
from infeng_dialects.anthropic.answer import MessageEvent, MessageResponse
from infeng_dialects.anthropic.errors import AnthropicError, body
from infeng_dialects.anthropic.parameters import AnthropicTool, CountTokensRequest, MessagesRequest

PATH = "/v1/messages"


def routes(settings: Mapping[str, Any]) -> dict[str, Route]:
    """Return the routes."""
    made = Operation("post", PATH, "Answer a conversation, as Anthropic's API", MessagesRequest, MessageResponse,
                     (MessageEvent,), ("Idempotency-Key",), errors=GENERATE, beside=(AnthropicTool,),
                     error=AnthropicError)  # fmt: skip
    counted = Operation("post", f"{PATH}/count_tokens", "Count the tokens of a conversation", CountTokensRequest,
                        counting.TokenCount, errors=READ, error=AnthropicError)  # fmt: skip
    answering = route(reading.read)
    return {
        PATH: Route(answering.handlers, error_form=body, read=reading.read, operations=(made,)),
        f"{PATH}/count_tokens": Route({"POST": counting.count}, error_form=body, operations=(counted,)),
    }
