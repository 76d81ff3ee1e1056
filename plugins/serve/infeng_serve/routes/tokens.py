"""/tokenize and /detokenize, with vLLM's bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec

from infeng_core.api import Tokenizer
from infeng_serve.auth import Caller
from infeng_serve.http import Call, Presence
from infeng_serve.model import Model
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.bounds import check_conversation, check_text, encoded
from infeng_serve.protocol.errors import ApiError
from infeng_serve.protocol.messages import checked
from infeng_serve.protocol.prompts import bare
from infeng_serve.protocol.reading import decode
from infeng_serve.protocol.token_bytes import token_bytes
from infeng_serve.protocol.token_types import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
    TokenPiece,
)
from infeng_serve.protocol.tools import select
from infeng_serve.service import Service

MOST = 1 << 20
"""Tokens that are detokenized at a time."""

Work = Callable[[Model, Caller, Context, bytes], bytes]


async def tokenize(service: Service, call: Call) -> None:
    """Answer the tokens of a prompt, or of a conversation."""
    await answer(service, call, _tokenized)


async def detokenize(service: Service, call: Call) -> None:
    """Answer the text of tokens."""
    await answer(service, call, _detokenized)


async def answer(service: Service, call: Call, work: Work) -> None:
    """Answer with the body that ``work`` returns, run on a thread since even decoding a large body takes long."""
    with service.taken(call.caller):
        body, presence = await service.body(call), Presence()
        call.watch(presence.leave)
        context = replace(service.context(call.id, call.own_id, call.caller), check=presence.check)
        found = await service.readers.run(call.caller.tenant, partial(work, service.model, call.caller, context, body))
        call.extra += context.ignored.headers(call.id)
    await call.respond(200, found)


def _tokenized(model: Model, caller: Caller, context: Context, body: bytes) -> bytes:
    context.check()
    wanted = decode(body, TokenizeRequest, context.ignored)
    if wanted.model is not None:
        model.adapters.of(caller, wanted.model)
    tokenizer = model.engine.tokenizer
    tools = select(wanted.tools, None, None).tools
    given = [name for name in ("prompt", "messages", "content") if getattr(wanted, name) is not None]
    if len(given) != 1:
        raise ApiError(400, "Give one of `prompt`, `messages` and `content`.", param="prompt")
    if wanted.content is not None:
        ids = _of_content(wanted.content, wanted, context)
    elif wanted.prompt is not None:
        check_text(wanted.prompt, context, "prompt")
        ids = encoded([wanted.prompt], context, "prompt")[0]
        if wanted.add_special_tokens is False:
            ids = bare(wanted.prompt, ids, tokenizer)
    else:
        messages = checked(wanted.messages or ())
        check_conversation(len(body), messages, (*tools, wanted.chat_template_kwargs), context, "messages")
        prompt = model.template.prompt(
            messages,
            tools=tools,
            add_generation_prompt=wanted.add_generation_prompt,
            continue_final_message=wanted.continue_final_message,
            variables=wanted.chat_template_kwargs,
        )
        ids = list(prompt.ids)
    context.check()
    texts = None
    if wanted.return_token_strs:
        spelled = {token: tokenizer.decode([token]) for token in set(ids)}
        texts = [spelled[token] for token in ids]
    tokens: list[int | TokenPiece] = [_piece(token, tokenizer) if wanted.with_pieces else token for token in ids]
    found = TokenizeResponse(count=len(ids), max_model_len=model.context, tokens=tokens, token_strs=texts)
    return msgspec.json.encode(found)


def _of_content(content: str, wanted: TokenizeRequest, context: Context) -> list[int]:
    """Return the tokens of a text in llama.cpp's form."""
    if not content:
        return []
    check_text(content, context, "content")
    ids = encoded([content], context, "content", parse_special=wanted.parse_special)[0]
    return ids if wanted.add_special else bare(content, ids, context.tokenizer)


def _piece(token: int, tokenizer: Tokenizer) -> TokenPiece:
    data = token_bytes(tokenizer, token)
    try:
        return TokenPiece(id=token, piece=data.decode())
    except UnicodeDecodeError:
        return TokenPiece(id=token, piece=list(data))


def _detokenized(model: Model, caller: Caller, context: Context, body: bytes) -> bytes:
    context.check()
    wanted = decode(body, DetokenizeRequest, context.ignored)
    if wanted.model is not None:
        model.adapters.of(caller, wanted.model)
    tokens, vocab = wanted.tokens, model.engine.model.config.vocab
    if len(tokens) > MOST or not 0 <= min(tokens, default=0) <= max(tokens, default=0) < vocab:
        raise ApiError(400, f"Give at most {MOST} tokens from 0 to {vocab - 1}.", param="tokens")
    text = model.engine.tokenizer.decode(tokens)
    return msgspec.json.encode(DetokenizeResponse(prompt=text, content=text))
