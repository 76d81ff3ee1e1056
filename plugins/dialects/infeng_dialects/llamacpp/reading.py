"""Conversion of bodies of /completion and /infill to completions."""

from __future__ import annotations

from typing import Any

from infeng_serve.api.dialects import (
    Context,
    bare,
    check_length,
    check_text,
    check_tokens,
    completing,
    decode,
    encoded,
    invalid,
)

from infeng_dialects import fim
from infeng_dialects.llamacpp.answer import LlamaAnswer
from infeng_dialects.llamacpp.parameters import Completing, InfillRequest, LlamaCompletionRequest, asked_of


def read(body: bytes, context: Context) -> LlamaAnswer:
    """Return the answer for a body of /completion. Slow: tokenizes. Raises ApiError."""
    given = decode(body, LlamaCompletionRequest, context.ignored)
    return _completed(given, joined(given.prompt, context), context)


def read_infill(body: bytes, context: Context) -> LlamaAnswer:
    """Return the answer for a body of /infill. Slow: tokenizes. Raises ApiError."""
    given = decode(body, InfillRequest, context.ignored)
    files = [(one.filename, one.text) for one in given.input_extra or ()]
    prompt = fim.prompt(given.input_prefix, given.input_suffix, context, files=files, begun=given.prompt or "")
    return _completed(given, prompt, context)


def joined(given: str | list[Any], context: Context) -> str | list[Any]:
    """Return a prompt with texts and ids mixed as ids; others as they are."""
    if isinstance(given, str) or not given:
        return given
    is_id = [isinstance(one, int) and not isinstance(one, bool) for one in given]
    is_text = [isinstance(one, str) for one in given]
    if all(is_id) or all(is_text) or not all(map(max, is_id, is_text)):
        return given
    check_length(given, context.context, "prompt")
    texts = [one for one in given if isinstance(one, str)]
    for text in texts:
        check_text(text, context, "prompt")
    check_tokens(texts, context, "prompt")
    ids = iter(zip(texts, encoded(texts, context, "prompt"), strict=True))
    found: list[int] = []
    for one in given:
        if isinstance(one, str):
            text, tokens = next(ids)
            found += bare(text, tokens, context.tokenizer) if found else tokens
        else:
            found.append(one)
    return found


def _completed(given: Completing, prompt: str | list[Any], context: Context) -> LlamaAnswer:
    if not prompt:
        raise invalid("prompt", "prompt: it is empty")
    asked = asked_of(given, prompt, context)
    found = completing(asked, context)
    answer = LlamaAnswer(asked, context, found, shows_tokens=bool(given.return_tokens))
    answer.paths = found.paths
    return answer
