"""Every answer is of the types that OpenAI's own package declares, strictly: literals, keys, and what may be null."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from infeng_serve.protocol import chat, completions, responses
from infeng_serve.protocol.answer import Context
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from protocol_parts import CALLS, SAID, TOOLS, body_of, context_of, data_of, scripted, streamed
from pydantic import BaseModel, TypeAdapter
from serve_parts import Running

NULLS = {
    "ChatCompletionMessage": {"content", "refusal"},
    "Choice": {"logprobs", "finish_reason"},
    "ChoiceLogprobs": {"refusal"},
    "CompletionChoice": {"logprobs", "finish_reason"},
    "ChatCompletionChunk": {"usage"},
    "Completion": {"usage"},
    "Response": {"error", "incomplete_details", "instructions", "max_output_tokens", "previous_response_id"},
    "Reasoning": {"effort", "summary"},
    "FunctionTool": {"parameters", "strict"},
}
"""Fields that OpenAI's types for TypeScript declare as ``| null`` (Python's cannot tell that from a key that is left
out), by the class; and of completions, ``usage`` and ``finish_reason`` of frames that others follow, as OpenAI's page
of ``stream_options`` has them."""

EXTENSIONS = {
    "ChatCompletionMessage": {"reasoning_content", "reasoning"},
    "ChoiceDelta": {"reasoning_content", "reasoning"},
    "Choice": {"stop_reason"},
    "CompletionChoice": {"stop_reason", "prompt_logprobs"},
    "ChatCompletion": {"prompt_logprobs"},
    "CreateEmbeddingResponse": {"pooling"},
    "Model": {"root", "max_model_len", "defaults"},
    "Response": {"store"},
    "ResponseFunctionCallArgumentsDoneEvent": {"name"},  # OpenAI's own, of later versions
    "Logprob": {"bytes"},
    "LogprobTopLogprob": {"bytes"},
}
"""Keys that are ours, vLLM's or llama.cpp's. None of them is null."""


def problems(found: Any, data: Any, path: str = "$") -> Iterator[str]:
    """Yield what of ``data`` is not as the type of ``found``, which was read from it, says."""
    if isinstance(found, list):
        for index, (one, value) in enumerate(zip(found, data, strict=True)):
            yield from problems(one, value, f"{path}[{index}]")
    if not isinstance(found, BaseModel):
        return
    kind = type(found).__name__
    known: Mapping[str, Any] = type(found).model_fields
    names = {field.alias or name: name for name, field in known.items()}
    for key, value in data.items():
        if key not in names:
            if key not in EXTENSIONS.get(kind, ()) or value is None:
                yield f"{path}.{key} is no field of {kind}"
        elif value is None and key not in NULLS.get(kind, ()):
            yield f"{path}.{key} of {kind} is null"
        else:
            yield from problems(getattr(found, names[key]), value, f"{path}.{key}")


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what reads a type; making it takes a tenth of a second for the union of all events."""
    return TypeAdapter(kind)


def check(kind: Any, data: Any) -> None:
    """Fail where ``data`` is not of a type of OpenAI's."""
    found = adapter(kind).validate_json(json.dumps(data), strict=True)
    response = data.get("response", data)
    assert all({"type", "name", "parameters", "strict"} <= tool.keys() for tool in response.get("tools", ()))
    assert list(problems(found, data)) == []


MESSAGES = [{"role": "user", "content": "Hi"}]
FUNCTIONS = [{"type": "function", **tool["function"]} for tool in TOOLS]
CHATS: list[dict[str, Any]] = [
    {},
    {"n": 2, "logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True}},
    {"tools": TOOLS, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"tools": TOOLS, "tool_choice": "required", "logprobs": True},
    {"seed": 1, "user": "x", "metadata": {"a": "b"}, "service_tier": "auto"},
]
TEXTS: list[dict[str, Any]] = [
    {},
    {"prompt": ["a", "b"], "n": 2, "logprobs": 2, "stream_options": {"include_usage": True}},
    {"echo": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
]
INPUTS: list[dict[str, Any]] = [
    {},
    {"top_logprobs": 2, "max_output_tokens": 5, "instructions": "Be brief.", "user": "x", "metadata": {"a": "b"}},
    {"tools": FUNCTIONS, "tool_choice": {"type": "function", "name": "add"}, "reasoning": {"effort": "low"}},
    {"tools": FUNCTIONS, "tool_choice": "auto", "temperature": 0, "top_p": 0.5},
    {"tools": [{"type": "function", "name": "f"}], "parallel_tool_calls": False},
    {"text": {"format": {"type": "json_object"}}},
    {"text": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"}},
]  # fmt: skip
ENDS = ("stop", "length", "cancelled")


@pytest.fixture
def told(tokenizer) -> Context:
    """A context as a server has it."""
    return context_of(tokenizer, fingerprint="fp_0123456789")


def scripts(context: Context, answer: Any, end: str, text: str) -> list[Any]:
    """Return what an engine gives to each request of an answer."""
    top = answer.requests[0].params.logprobs
    return [scripted(context.tokenizer, one.prompt, text, end, top=top) for one in answer.requests]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("given", CHATS)
@pytest.mark.parametrize("text", [SAID, SAID + CALLS, CALLS])
def test_answers_and_chunks_of_chats_match_openais_types(told, given, end, text):
    answer = chat.read(body_of(messages=MESSAGES, **given), told)
    events = scripts(told, answer, end, text)
    check(ChatCompletion, json.loads(answer.body([one[-1].completion for one in events])))
    answer = chat.read(body_of(messages=MESSAGES, **given, stream=True), told)
    for frame in streamed(answer, events)[:-1]:
        check(ChatCompletionChunk, data_of(frame))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("given", TEXTS)
def test_answers_and_frames_of_completions_match_openais_types(told, given, end):
    body = {"prompt": "Hi", **given}
    answer = completions.read(body_of(**body), told)
    events = scripts(told, answer, end, SAID)
    if not given.get("echo") or given.get("logprobs") is None:
        check(Completion, json.loads(answer.body([one[-1].completion for one in events])))
    answer = completions.read(body_of(**body, stream=True), told)
    for frame in streamed(answer, events)[:-1]:
        data = data_of(frame)
        for choice in data["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"  # null in a stream, which the type forgets
        check(Completion, data)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("text", [SAID, SAID + CALLS, CALLS])
def test_responses_and_their_events_match_openais_types(told, given, end, text):
    answer = responses.read(body_of(input="Hi", **given), told)
    events = scripts(told, answer, end, text)
    check(Response, json.loads(answer.body([one[-1].completion for one in events])))
    answer = responses.read(body_of(input="Hi", **given, stream=True), told)
    for frame in streamed(answer, events):
        check(ResponseStreamEvent, data_of(frame))


@pytest.mark.slow
def test_vectors_and_models_match_openais_types(served: Running):
    for form in ("float", "base64"):
        found = served.ask("/v1/embeddings", {"input": ["a", "b"], "encoding_format": form}).json
        if form == "float":
            check(CreateEmbeddingResponse, found)
        assert found["usage"].keys() == {"prompt_tokens", "total_tokens"}
    for card in served.ask("/v1/models").json["data"]:
        parent = card.pop("parent")  # vLLM's, null for the base model
        assert (parent is None) == (card["id"] not in ("bard", "coder"))
        check(Model, card)


def test_system_fingerprint_covers_all_that_answers_depend_on(served: Running):
    texts = {"prompt": "x", "max_tokens": 2}
    first = served.ask("/v1/completions", texts).json["system_fingerprint"]
    assert first.startswith("fp_")
    chats = served.ask("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2, "stream": True}).events
    assert {event["system_fingerprint"] for event in chats[:-1]} == {first}
    service = served.server.service
    assert service.fingerprint == first
