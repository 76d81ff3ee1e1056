"""Texts to tokens and back, with vLLM's bodies."""

from __future__ import annotations

import msgspec

from infeng_serve.http import Call
from infeng_serve.model import Model
from infeng_serve.protocol.errors import ApiError
from infeng_serve.protocol.reading import decode
from infeng_serve.protocol.token_types import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from infeng_serve.service import Service

MOST = 1 << 22
"""Tokens that are turned into text at a time."""


async def tokenize(service: Service, call: Call) -> None:
    """Answer the tokens of a prompt, or of a conversation."""
    wanted = decode(await call.body(service.settings), TokenizeRequest)
    model = service.model
    if wanted.model is not None:
        model.adapters.of(call.caller, wanted.model)
    if (wanted.prompt is None) == (wanted.messages is None):
        raise ApiError(400, "Give either `prompt` or `messages`.", param="prompt")
    await call.respond(200, await service.bridge.run(lambda: _tokenized(model, wanted)))


async def detokenize(service: Service, call: Call) -> None:
    """Answer the text of tokens."""
    wanted = decode(await call.body(service.settings), DetokenizeRequest)
    model = service.model
    if wanted.model is not None:
        model.adapters.of(call.caller, wanted.model)
    vocab = model.engine.model.config.vocab
    if len(wanted.tokens) > MOST or not all(0 <= token < vocab for token in wanted.tokens):
        raise ApiError(400, f"Give at most {MOST} tokens from 0 to {vocab - 1}.", param="tokens")
    text = await service.bridge.run(lambda: model.engine.tokenizer.decode(wanted.tokens))
    await call.respond(200, msgspec.json.encode(DetokenizeResponse(prompt=text)))


def _tokenized(model: Model, wanted: TokenizeRequest) -> bytes:
    tokenizer = model.engine.tokenizer
    if wanted.prompt is not None:
        ids = tokenizer.encode([wanted.prompt])[0]
        if wanted.add_special_tokens is False and ids[:1] == [tokenizer.bos_id]:
            ids = ids[1:]
    else:
        prompt = model.template.prompt(
            wanted.messages or [],
            tools=wanted.tools,
            add_generation_prompt=wanted.add_generation_prompt,
            continue_final_message=wanted.continue_final_message,
            variables=wanted.chat_template_kwargs,
        )
        ids = list(prompt.ids)
    texts = [tokenizer.decode([token]) for token in ids] if wanted.return_token_strs else None
    found = TokenizeResponse(count=len(ids), max_model_len=model.context, tokens=ids, token_strs=texts)
    return msgspec.json.encode(found)
