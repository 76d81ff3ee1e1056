"""Texts to tokens and back, with vLLM's bodies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from infeng_serve.auth import Caller
from infeng_serve.http import Call
from infeng_serve.model import Model
from infeng_serve.protocol.errors import ApiError
from infeng_serve.protocol.messages import checked
from infeng_serve.protocol.reading import decode
from infeng_serve.protocol.token_types import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from infeng_serve.protocol.tools import select
from infeng_serve.service import Service

MOST = 1 << 22
"""Tokens that are turned into text at a time."""


async def tokenize(service: Service, call: Call) -> None:
    """Answer the tokens of a prompt, or of a conversation."""
    await _answer(service, call, _tokenized)


async def detokenize(service: Service, call: Call) -> None:
    """Answer the text of tokens."""
    await _answer(service, call, _detokenized)


async def _answer(service: Service, call: Call, work: Callable[[Model, Caller, bytes], bytes]) -> None:
    """Do ``work`` on a thread: a large body takes long to read already."""
    with service.taken(call.caller):
        body = await call.body(service.settings)
        found = await service.bridge.run(partial(work, service.model, call.caller, body))
    await call.respond(200, found)


def _tokenized(model: Model, caller: Caller, body: bytes) -> bytes:
    wanted = decode(body, TokenizeRequest)
    if wanted.model is not None:
        model.adapters.of(caller, wanted.model)
    tokenizer = model.engine.tokenizer
    tools = select(wanted.tools, None, None).tools
    if wanted.prompt is not None and wanted.messages is None:
        ids = tokenizer.encode([wanted.prompt])[0]
        if wanted.add_special_tokens is False and ids[:1] == [tokenizer.bos_id]:
            ids = ids[1:]
    elif wanted.messages is not None and wanted.prompt is None:
        prompt = model.template.prompt(
            checked(wanted.messages),
            tools=tools,
            add_generation_prompt=wanted.add_generation_prompt,
            continue_final_message=wanted.continue_final_message,
            variables=wanted.chat_template_kwargs,
        )
        ids = list(prompt.ids)
    else:
        raise ApiError(400, "Give either `prompt` or `messages`.", param="prompt")
    texts = [tokenizer.decode([token]) for token in ids] if wanted.return_token_strs else None
    found = TokenizeResponse(count=len(ids), max_model_len=model.context, tokens=ids, token_strs=texts)
    return msgspec.json.encode(found)


def _detokenized(model: Model, caller: Caller, body: bytes) -> bytes:
    wanted = decode(body, DetokenizeRequest)
    if wanted.model is not None:
        model.adapters.of(caller, wanted.model)
    vocab = model.engine.model.config.vocab
    if len(wanted.tokens) > MOST or not all(0 <= token < vocab for token in wanted.tokens):
        raise ApiError(400, f"Give at most {MOST} tokens from 0 to {vocab - 1}.", param="tokens")
    return msgspec.json.encode(DetokenizeResponse(prompt=model.engine.tokenizer.decode(wanted.tokens)))
