"""/v1/messages/count_tokens: the number of tokens of a conversation's prompt."""

from __future__ import annotations

import msgspec
from infeng_serve.api import Call, Caller, Service
from infeng_serve.api.dialects import Context, Model, answer_with, decode, prompt_of

from infeng_dialects.anthropic.parameters import CountTokensRequest
from infeng_dialects.anthropic.reading import asked_of


class TokenCount(msgspec.Struct, kw_only=True):
    """The number of tokens."""

    input_tokens: int


async def count(service: Service, call: Call) -> None:
    """Answer one call."""
    await answer_with(service, call, counted)


def counted(model: Model, caller: Caller, context: Context, body: bytes) -> bytes:
    """Return the response body. Slow: renders the template and tokenizes. Raises ApiError."""
    given = decode(body, CountTokensRequest, context.ignored)
    context.adapter_of(given.model)
    prompt = prompt_of(asked_of(given, context), context, len(body))
    return msgspec.json.encode(TokenCount(input_tokens=len(prompt.ids)))
