"""Conversion of bodies of /api/generate and /api/chat to conversations and completions."""

from __future__ import annotations

from typing import Any

from infeng_serve.api.dialects import (
    Answer,
    ChatRequest,
    CompletionRequest,
    Context,
    StructuredOutputs,
    completing,
    conversation,
    decode,
    invalid,
    not_supported,
)

from infeng_dialects import fim
from infeng_dialects.ollama import names
from infeng_dialects.ollama.answer import Lines, Loaded
from infeng_dialects.ollama.messages import messages
from infeng_dialects.ollama.parameters import GenerateRequest, Generating, OllamaChatRequest, Options
from infeng_dialects.parameters import repetition_penalty

SAME = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop", "presence_penalty", "frequency_penalty",
        "mirostat")  # fmt: skip
"""Options with the same name and meaning in chat."""


def read_generate(body: bytes, context: Context) -> Answer:
    """Return the answer for a body of /api/generate. Slow. Raises ApiError."""
    given = decode(body, GenerateRequest, context.ignored)
    model = names.known(given.model, context)
    _check(given)
    if not given.prompt and not given.suffix:
        return Loaded(given.model, context, is_chat=False)
    if given.raw or given.suffix:
        if given.suffix and given.system:
            raise not_supported("system", "a text that is filled in has no conversation: leave it out")
        prompt = given.prompt or ""
        text = CompletionRequest(
            model=model, prompt=fim.prompt(prompt, given.suffix, context) if given.suffix else prompt
        )
        text.logprobs = (given.top_logprobs or 0) if given.logprobs else None
        _set(text, given, context)
        text.max_tokens = context.context if text.max_tokens is None else text.max_tokens
        found = completing(text, context)
        answer = Lines(text, context, found.requests, name=given.model, reader=None, is_chat=False)
        answer.paths = found.paths
        return answer
    said = [{"role": "system", "content": given.system}] if given.system else []
    return _conversed(
        given, [*said, {"role": "user", "content": given.prompt}], model, context, len(body), is_chat=False
    )


def read_chat(body: bytes, context: Context) -> Answer:
    """Return the answer for a body of /api/chat. Slow. Raises ApiError."""
    given = decode(body, OllamaChatRequest, context.ignored)
    model = names.known(given.model, context)
    if not given.messages:
        return Loaded(given.model, context, is_chat=True)
    return _conversed(given, messages(given.messages), model, context, len(body), is_chat=True, tools=given.tools)


def _conversed(
    given: Generating,
    said: list[dict[str, Any]],
    model: str,
    context: Context,
    size: int,
    *,
    is_chat: bool,
    tools: list[Any] | None = None,
) -> Answer:
    """Return the answer to a conversation."""
    asked = ChatRequest(model=model, messages=said, tools=tools, logprobs=given.logprobs)
    asked.top_logprobs = given.top_logprobs if given.logprobs else None
    if isinstance(given.think, str):
        asked.reasoning_effort, asked.enable_thinking = given.think, True
    elif given.think is not None:
        asked.enable_thinking = given.think
    if said[-1]["role"] == "assistant" and not said[-1].get("tool_calls"):
        asked.continue_final_message = True
    _set(asked, given, context)
    found = conversation(asked, context, size)
    reader = found.reader(shows_reasoning=given.think is not False)
    answer = Lines(asked, context, found.requests, name=given.model, reader=reader, is_chat=is_chat)
    answer.paths = found.paths
    return answer


def _set(asked: ChatRequest | CompletionRequest, given: Generating, context: Context) -> None:
    """Set the parameters of sampling and of the form."""
    asked.stream = given.stream is not False
    if given.format:
        asked.structured_outputs = _form(given.format)
    options = given.options or Options()
    for name in SAME:
        setattr(asked, name, getattr(options, name))
    if options.num_predict is not None and options.num_predict >= 0:
        asked.max_tokens = options.num_predict
    elif options.num_predict not in (None, -1, -2):
        raise invalid("options.num_predict", f"options.num_predict: {options.num_predict} is less than -2")
    last = options.repeat_last_n
    asked.repetition_penalty = repetition_penalty(options.repeat_penalty, last, "options.repeat_last_n")
    if options.tfs_z not in (None, 1.0):
        raise not_supported("options.tfs_z", "there is no tail-free sampling here: use min_p (1 is off)")
    for name in ("num_ctx", "num_keep", "penalize_newline"):
        if getattr(options, name) is not None:
            context.ignored.note(f"options.{name}")


def _form(given: str | dict[str, Any]) -> StructuredOutputs:
    if isinstance(given, dict):
        return StructuredOutputs(json=given)
    if given != "json":
        raise invalid("format", f'format: {given!r:.80} is not "json" or a JSON schema')
    return StructuredOutputs(json_object=True)


def _check(given: GenerateRequest) -> None:
    if given.images:
        raise not_supported("images", "the model reads texts: leave them out")
    if given.template:
        raise not_supported("template", "a call brings no template: give raw and the whole prompt")
    if given.context:
        raise not_supported("context", "no conversation is kept: give its messages to /api/chat")
