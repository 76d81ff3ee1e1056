"""Texts to tokens and back, with vLLM's bodies."""

from __future__ import annotations

from typing import Any

import msgspec

from infeng_serve.http import Call
from infeng_serve.model import Model
from infeng_serve.protocol.errors import ApiError
from infeng_serve.routes.bodies import decoded
from infeng_serve.service import Service

MOST = 1 << 22
"""Tokens that are turned into text at a time."""


class Tokenize(msgspec.Struct):
    """Body of /tokenize: a prompt, or messages that the chat template renders."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False
    tools: list[dict[str, Any]] = []
    chat_template_kwargs: dict[str, Any] | None = None


class Detokenize(msgspec.Struct):
    """Body of /detokenize."""

    tokens: list[int]
    model: str | None = None


async def tokenize(service: Service, call: Call) -> None:
    """Answer the tokens of a prompt, or of a conversation."""
    wanted = decoded(Tokenize, await call.body(service.settings))
    model = service.model
    if wanted.model is not None:
        model.adapters.of(call.caller, wanted.model)
    if (wanted.prompt is None) == (wanted.messages is None):
        raise ApiError(400, "Give either `prompt` or `messages`.", param="prompt")
    await call.respond(200, await service.bridge.run(lambda: _tokenized(model, wanted)))


async def detokenize(service: Service, call: Call) -> None:
    """Answer the text of tokens."""
    wanted = decoded(Detokenize, await call.body(service.settings))
    model = service.model
    if wanted.model is not None:
        model.adapters.of(call.caller, wanted.model)
    vocab = model.engine.model.config.vocab
    if len(wanted.tokens) > MOST or not all(0 <= token < vocab for token in wanted.tokens):
        raise ApiError(400, f"Give at most {MOST} tokens from 0 to {vocab - 1}.", param="tokens")
    text = await service.bridge.run(lambda: model.engine.tokenizer.decode(wanted.tokens))
    await call.respond(200, msgspec.json.encode({"prompt": text}))


def _tokenized(model: Model, wanted: Tokenize) -> bytes:
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
    found = {"count": len(ids), "max_model_len": model.context, "tokens": ids, "token_strs": texts}
    return msgspec.json.encode(found)
