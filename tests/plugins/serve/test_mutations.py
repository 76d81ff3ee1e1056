"""Valid calls with one thing wrong: an answer or one error of one shape that names a part of the body, never 500."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from mutations import mutated
from serve_parts import Running

EACH = 120
"""Bodies for each route."""

FUNCTION = {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
COMMON: dict[str, Any] = {
    "model": "bard", "stream": False, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3,
    "stop": ["###"], "stop_token_ids": [7], "presence_penalty": 0.1, "logit_bias": {"5": 1.0}, "bad_words": ["bad"],
    "priority": 1, "timeout": 30.0, "cache_salt": "s", "user": "u", "metadata": {"a": "b"}, "keep_alive": "5m",
}  # fmt: skip
BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/completions": {**COMMON, "prompt": ["Once", "upon"], "max_tokens": 1, "n": 2, "echo": True, "logprobs": 1,
                        "stream_options": {"include_usage": True}, "response_format": {"type": "text"}},
    "/v1/chat/completions": {
        **COMMON, "max_tokens": 1, "logprobs": True, "top_logprobs": 1, "tools": [TOOL], "tool_choice": "auto",
        "chat_template_kwargs": {"enable_thinking": False}, "documents": [{"title": "t", "text": "x"}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "3"},
        ]},
    "/v1/responses": {
        **COMMON, "max_output_tokens": 1, "instructions": "Be brief.", "top_logprobs": 1,
        "reasoning": {"effort": "low"},
        "tools": [{"type": "function", **FUNCTION}], "tool_choice": "auto", "text": {"format": {"type": "text"}},
        "include": ["message.output_text.logprobs"], "truncation": "disabled",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "3"},
        ]},
    "/v1/embeddings": {"model": "bard", "input": ["a", "b"], "encoding_format": "float", "pooling": "mean",
                       "dimensions": 256, "priority": 1, "timeout": 30.0, "user": "u"},
    "/tokenize": {"model": "bard", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL],
                  "add_generation_prompt": True, "return_token_strs": True, "chat_template_kwargs": {"a": 1}},
    "/detokenize": {"model": "bard", "tokens": [5, 6, 7]},
    "/v1/load_lora_adapter": {"lora_name": "new", "lora_path": "nowhere", "load_inplace": False},
    "/v1/unload_lora_adapter": {"lora_name": "nobody"},
    "/lora-adapters": {"id": 0, "scale": 0.5},  # in a list
}  # fmt: skip


BESIDE = {
    "/v1/load_lora_adapter": ("lora_path",),  # it is nowhere, which is seen once all else is right
    "/v1/responses": ("input",),  # tools are in the prompt, which is too long then
    "/v1/chat/completions": ("messages",),
}
"""What else a body may be refused for."""


def is_about(param: str, place: str) -> bool:
    """Return whether a parameter is the part of a body at ``place``, a part of it, what it is a part of, or beside."""
    one, other = ([part for part in text.replace("[", ".[").split(".") if part] for text in (param, place))
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared] or one[:-1] == other[:-1]


@pytest.mark.parametrize("path", BODIES)
def test_a_mutated_body_is_answered_or_refused_with_the_wrong_part_named(served: Running, path: str):
    chance = random.Random(path)
    connection = http.client.HTTPConnection(*served.address, timeout=60)
    refused = 0
    for _ in range(EACH):
        body, place = mutated(BODIES[path], chance)
        body = b"[" + body + b"]" if path == "/lora-adapters" else body
        connection.request("POST", path, body, {"content-type": "application/json"})
        reply = connection.getresponse()
        data = reply.read()
        said = (path, place, body[:2000], data[:500])
        assert reply.status in (200, 400, 403, 404), said
        if reply.status != 200:
            refused += 1
            error = json.loads(data)["error"]
            assert error.keys() == {"message", "type", "param", "code"}, said
            assert 0 < len(error["message"]) <= 1000, said
            if error["code"] == "invalid_json":
                continue
            about = f"[0].{place}" if path == "/lora-adapters" else place
            assert isinstance(error["param"], str) or place == "", said
            assert is_about(error["param"] or "", about) or error["param"] in BESIDE.get(path, ()), said
        else:
            json.loads(data)
    assert refused > EACH // 10
    connection.close()
