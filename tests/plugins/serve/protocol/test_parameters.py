"""Each parameter of a body reaches the engine; each that cannot is refused by its name."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from infeng_serve.protocol import chat, completions, errors, responses
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.embedding_types import EmbeddingRequest
from infeng_serve.protocol.errors import ApiError
from infeng_serve.protocol.reading import ELSEWHERE, decode
from protocol_parts import TOOLS, TagTemplate, body_of, context_of, refusal

from infeng_core.api import RequestError, SamplingParams

ROUTES: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "completions": (completions.read, {"prompt": "The lion"}, completions.CompletionRequest),
    "chat": (chat.read, {"messages": [{"role": "user", "content": "Hi"}]}, chat.ChatRequest),
    "responses": (responses.read, {"input": "Hi"}, responses.ResponsesRequest),
}
KNOWN = {field.name for field in fields(SamplingParams)}

COMMON: list[tuple[str, Any, str, Any]] = [
    ("temperature", 0.25, "temperature", 0.25),
    ("temperature", 0, "temperature", 0.0),
    ("top_p", 0.5, "top_p", 0.5),
    ("top_k", 7, "top_k", 7),
    ("top_k", -1, "top_k", 0),
    ("min_p", 0.125, "min_p", 0.125),
    ("typical_p", 0.5, "typical_p", 0.5),
    ("top_n_sigma", 1.5, "top_n_sigma", 1.5),
    ("xtc_probability", 0.5, "xtc_probability", 0.5),
    ("xtc_threshold", 0.25, "xtc_threshold", 0.25),
    ("dry_multiplier", 0.75, "dry_multiplier", 0.75),
    ("dry_base", 2.0, "dry_base", 2.0),
    ("dry_allowed_length", 3, "dry_allowed_length", 3),
    ("dry_sequence_breakers", ["a", "b"], "dry_sequence_breakers", ("a", "b")),
    ("dry_penalty_last_n", 64, "dry_penalty_last_n", 64),
    ("seed", 5, "seed", 5),
    ("seed", -1, "seed", 2**64 - 1),
    ("stop", "end", "stop", ("end",)),
    ("stop", ["a", "b"], "stop", ("a", "b")),
    ("min_tokens", 4, "min_tokens", 4),
    ("ignore_eos", True, "ignore_eos", True),
    ("presence_penalty", 0.5, "presence_penalty", 0.5),
    ("frequency_penalty", -0.5, "frequency_penalty", -0.5),
    ("repetition_penalty", 1.25, "repetition_penalty", 1.25),
    ("logit_bias", {"5": -100, "6": 1.5}, "logit_bias", ((5, -100.0), (6, 1.5))),
    ("allowed_token_ids", [4, 5], "allowed_token_ids", (4, 5)),
    ("structured_outputs", {"regex": "[ab]"}, "processors", (("grammar", {"regex": "[ab]"}),)),
    ("structured_outputs", {"choice": ["a"]}, "processors", (("grammar", {"choice": ["a"]}),)),
    ("structured_outputs", {"grammar": "start: /a/"}, "processors", (("grammar", {"lark": "start: /a/"}),)),
    ("structured_outputs", {"json": {"type": "null"}}, "processors", (("grammar", {"json_schema": {"type": "null"}}),)),
    ("structured_outputs", {"json": '{"a": 1}'}, "processors", (("grammar", {"json_schema": {"a": 1}}),)),
    ("structured_outputs", {"json_object": True}, "processors", (("grammar", {"json_object": True}),)),
    ("guided_json", {"type": "null"}, "processors", (("grammar", {"json_schema": {"type": "null"}}),)),
    ("guided_regex", "[ab]", "processors", (("grammar", {"regex": "[ab]"}),)),
    ("guided_choice", ["a", "b"], "processors", (("grammar", {"choice": ["a", "b"]}),)),
    ("json_schema", {"type": "null"}, "processors", (("grammar", {"json_schema": {"type": "null"}}),)),
    ("json_schema", '{"type": "null"}', "processors", (("grammar", {"json_schema": {"type": "null"}}),)),
    ("response_schema", {"type": "null"}, "processors", (("grammar", {"json_schema": {"type": "null"}}),)),
    ("grammar", 'root ::= "a"', "processors", (("grammar", {"gbnf": 'root ::= "a"'}),)),
    ("structured_outputs", {"grammar": 'root ::= "a"'}, "processors", (("grammar", {"gbnf": 'root ::= "a"'}),)),
    ("structured_outputs", {"grammar": 'start: "::="'}, "processors", (("grammar", {"lark": 'start: "::="'}),)),
    ("guided_grammar", "start: /a/", "processors", (("grammar", {"lark": "start: /a/"}),)),
]
CHOICES = [
    ("max_tokens", 9, "max_tokens", 9),
    ("max_completion_tokens", 9, "max_tokens", 9),
    ("prompt_logprobs", 2, "prompt_logprobs", 2),
    ("response_format", {"type": "text"}, "processors", ()),
    ("response_format", {"type": "json_object"}, "processors", (("grammar", {"json_object": True}),)),
    ("response_format", {"type": "json_object", "schema": {"a": 1}}, "processors",
     (("grammar", {"json_schema": {"a": 1}}),)),
    ("response_format", {"type": "json_schema", "schema": {"a": 1}}, "processors",
     (("grammar", {"json_schema": {"a": 1}}),)),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"a": 1}}},
     "processors", (("grammar", {"json_schema": {"a": 1}}),)),
]  # fmt: skip
OWN = {
    "completions": [
        ("stop_token_ids", [5, 6], "stop_token_ids", (5, 6)),
        ("logprobs", 3, "logprobs", 3),
        ("logprobs", 0, "logprobs", 0),
        ("skip_special_tokens", False, "skip_special_tokens", False),
    ],
    "chat": [
        ("stop_token_ids", [5, 6], "stop_token_ids", (5, 6, 7)),
        ("logprobs", True, "logprobs", 0),
        ("logprobs", False, "logprobs", None),
    ],
    "responses": [
        ("max_output_tokens", 9, "max_tokens", 9),
        ("top_logprobs", 3, "logprobs", 3),
        ("include", ["message.output_text.logprobs"], "logprobs", 0),
        ("text", {"format": {"type": "json_schema", "name": "x", "schema": {"a": 1}}}, "processors",
         (("grammar", {"json_schema": {"a": 1}}),)),
    ],
}  # fmt: skip
CASES = [
    (route, *case)
    for route in ROUTES
    for case in (*COMMON, *(CHOICES if route != "responses" else ()), *OWN[route])
    if case[2] in KNOWN
]


def made(context: Context, route: str, **given: Any) -> Any:
    read, least, _ = ROUTES[route]
    return read(body_of(**{**least, **given}), context)


@pytest.mark.parametrize(("route", "name", "value", "attribute", "expected"), CASES)
def test_a_parameter_reaches_the_engine(context, route, name, value, attribute, expected):
    [request] = made(context, route, **{name: value}).requests
    found = getattr(request.params, attribute)
    assert found == expected
    assert type(found) is type(expected)


def test_parameters_that_this_engine_lacks_are_refused_by_name(context, monkeypatch):
    monkeypatch.setattr("infeng_serve.protocol.sampling._KNOWN", KNOWN - {"min_p"})
    for route, (read, least, _) in ROUTES.items():
        error = refusal(read, context, **least, min_p=0.5)
        assert (error.status, error.param, error.code) == (400, "min_p", "unsupported_parameter"), route


@pytest.mark.parametrize("route", ROUTES)
def test_mirostat_is_accepted_as_off_and_else_refused_with_an_alternative(context, route):
    assert made(context, route, mirostat=0, mirostat_mode=0, mirostat_tau=5.0, mirostat_eta=0.1).requests
    read, least, _ = ROUTES[route]
    for name in ("mirostat", "mirostat_mode"):
        error = refusal(read, context, **least, **{name: 2})
        assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")
        assert "use min_p or top_n_sigma" in str(error)


@pytest.mark.parametrize("route", ROUTES)
def test_priority_timeout_and_salt_reach_the_engine(context, route):
    [request] = made(context, route, model="bard", priority=-3, timeout=2.5, cache_salt="s").requests
    assert (request.adapter, request.priority, request.timeout, request.tenant) == ("bard", -3, 2.5, "us")
    assert request.cache_salt == "us\0s"
    [plain] = made(context, route).requests
    assert (plain.adapter, plain.priority, plain.timeout, plain.cache_salt) == (None, 0, None, "us")


def test_tenants_with_salts_share_no_cache_with_others(tokenizer):
    pairs = [("a", "bc"), ("ab", "c"), ("abc", ""), ("abc", None), ("", "abc")]
    salts = [
        made(context_of(tokenizer, tenant=tenant), "completions", cache_salt=salt).requests[0].cache_salt
        for tenant, salt in pairs
    ]
    assert len(set(salts)) == 4
    assert salts[2] == salts[3]


@pytest.mark.parametrize("route", ROUTES)
def test_adapters_combine_by_their_weights(context, route):
    given = [{"name": "bard", "weight": 0.5}, {"name": "coder"}]
    [request] = made(context, route, model="demo", adapters=given).requests
    assert request.adapter == (("bard", 0.5), ("coder", 1.0))
    read, least, _ = ROUTES[route]
    assert refusal(read, context, **least, adapters=[{"name": "demo"}]).param == "adapters[0].name"
    assert refusal(read, context, **least, adapters=[{"name": "nobody"}]).status == 404
    assert refusal(read, context, **least, model="bard", adapters=given).param == "adapters"
    assert refusal(read, context, **least, adapters=[{"name": "bard", "weight": "1"}]).param == "adapters[0].weight"


@pytest.mark.parametrize("route", ["completions", "chat"])
def test_each_choice_has_the_next_seed(context, route):
    requests = made(context, route, n=3, seed=2**64 - 2).requests
    assert [request.params.seed for request in requests] == [2**64 - 2, 2**64 - 1, 0]
    assert {request.params.seed for request in made(context, route, n=3).requests} == {None}


def test_prompts_are_texts_or_ids_one_or_several(context, tokenizer):
    [lion], [witch] = tokenizer.encode(["The lion"]), tokenizer.encode(["A witch"])
    for prompt, expected in (
        ("The lion", [lion]),
        (["The lion", "A witch"], [lion, witch]),
        ([5, 6], [[5, 6]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
    ):
        requests = made(context, "completions", prompt=prompt, n=2).requests
        assert [list(request.prompt) for request in requests] == [ids for ids in expected for _ in range(2)]


def test_the_models_defaults_apply_to_parameters_that_are_not_given(tokenizer):
    context = context_of(tokenizer, defaults={"temperature": 0.5, "top_k": 3, "nonsense": 1})
    [request] = made(context, "chat", top_k=5).requests
    assert (request.params.temperature, request.params.top_k, request.params.top_p) == (0.5, 5, 1.0)


def test_max_tokens_defaults_to_16_for_texts_and_to_the_rest_of_the_context_for_chats(context):
    assert made(context, "completions").requests[0].params.max_tokens == completions.MAX_TOKENS == 16
    for route in ("chat", "responses"):
        [request] = made(context, route).requests
        assert request.params.max_tokens == context.context - len(request.prompt)


def test_a_conversation_that_fills_the_context_is_refused(context):
    error = refusal(chat.read, context, messages=[{"role": "user", "content": "long " * 400}])
    assert (error.status, error.param, error.code) == (400, "messages", "context_length_exceeded")
    error = refusal(completions.read, context, prompt="x" * (33 * context.context))
    assert (error.status, error.param, error.code) == (400, "prompt", "context_length_exceeded")


def test_bad_words_are_forbidden_at_a_words_start_and_within(context, tokenizer):
    [request] = made(context, "completions", bad_words=["lion"]).requests
    words = request.params.bad_words_ids
    [plain] = tokenizer.encode(["lion"])
    assert words[0] == tuple(plain[1:])
    assert all(tokenizer.bos_id not in word for word in words)
    assert refusal(completions.read, context, prompt="a", bad_words=[" "]).param == "bad_words"


@pytest.mark.parametrize("route", ROUTES)
def test_null_is_the_same_as_leaving_a_parameter_out(context, route):
    _, least, kind = ROUTES[route]
    names = [name for name in kind.__struct_fields__ if name not in least]
    [request] = made(context, route, **dict.fromkeys(names)).requests
    assert request == made(context, route).requests[0]


def wrong_value(schema: dict[str, Any]) -> Any:
    """Return a value that a field of this schema cannot have."""
    kinds = {one.get("type") or "object" for one in schema.get("anyOf", [schema])}
    return "text" if kinds & {"integer", "number"} else 5


@pytest.mark.parametrize("route", ROUTES)
def test_a_value_of_another_type_is_refused_by_the_parameters_name(context, route):
    read, least, kind = ROUTES[route]
    _, components = msgspec.json.schema_components([kind])
    for name, schema in components[kind.__name__]["properties"].items():
        error = refusal(read, context, **{**least, name: wrong_value(schema)})
        assert (error.status, error.param, error.code) == (400, name, "invalid_type"), name
        assert name in error.message


@pytest.mark.parametrize(
    ("route", "given", "param"),
    [
        ("completions", {"prompt": []}, "prompt"),
        ("completions", {"prompt": ["a", 1]}, "prompt"),
        ("completions", {"prompt": [1, -1]}, "prompt[1]"),
        ("completions", {"prompt": [[1], [True]]}, "prompt[1][0]"),
        ("completions", {"prompt": [[]]}, "prompt[0]"),
        ("completions", {"n": 0}, "n"),
        ("completions", {"n": 17}, "n"),
        ("completions", {"prompt": [[1]] * 100, "n": 16}, "prompt"),
        ("completions", {"n": 2, "best_of": 3}, "best_of"),
        ("completions", {"suffix": "x"}, "suffix"),
        ("completions", {"max_tokens": 0}, "max_tokens"),
        ("completions", {"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ("completions", {"min_tokens": 17}, "min_tokens"),
        ("completions", {"logprobs": 300}, "logprobs"),
        ("completions", {"logprobs": True}, "logprobs"),
        ("completions", {"echo": True, "logprobs": 1, "stream": True}, "echo"),
        ("completions", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("completions", {"temperature": -1}, "temperature"),
        ("completions", {"seed": 2**64}, "seed"),
        ("completions", {"priority": 2**31}, "priority"),
        ("completions", {"timeout": 0}, "timeout"),
        ("completions", {"stop": [""]}, "stop"),
        ("completions", {"stop": [1]}, "stop[0]"),
        ("completions", {"logit_bias": {"x": 1}}, "logit_bias"),
        ("completions", {"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ("completions", {"stream_options": {"nonsense": 1}}, "stream_options.nonsense"),
        ("completions", {"response_format": {"type": "xml"}}, "response_format.type"),
        ("completions", {"response_format": {}}, "response_format.type"),
        ("completions", {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ("completions", {"structured_outputs": {}}, "structured_outputs"),
        ("completions", {"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ("completions", {"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ("completions", {"guided_choice": []}, "guided_choice"),
        ("completions", {"json_schema": {}, "response_schema": {}}, "response_schema"),
        ("completions", {"json_schema": "["}, "json_schema"),
        ("completions", {"guided_json": "{"}, "guided_json"),
        ("completions", {"guided_json": "[" * 100_000}, "guided_json"),
        ("chat", {"messages": []}, "messages"),
        ("chat", {"messages": [1]}, "messages[0]"),
        ("chat", {"messages": [{"content": "x"}]}, "messages[0].role"),
        ("chat", {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ("chat", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("chat", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ("chat", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ("chat", {"messages": [{"role": "user", "content": "refuse me"}]}, "messages"),
        ("chat", {"tools": [{"type": "web"}]}, "tools[0].type"),
        ("chat", {"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ("chat", {"tools": [{"function": {"name": "a", "parameters": 1}}]}, "tools[0].function.parameters"),
        ("chat", {"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name"),
        ("chat", {"tool_choice": "maybe"}, "tool_choice"),
        ("chat", {"tool_choice": "required"}, "tool_choice"),
        ("chat", {"tools": TOOLS, "tool_choice": {"function": {"name": "x"}}}, "tool_choice.function.name"),
        ("chat", {"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ("chat", {"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ("chat", {"tools": [{"function": {"name": "unknown"}}], "tool_choice": "required"}, "tool_choice"),
        ("chat", {"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "tool_choice"),
        ("chat", {"top_logprobs": 3}, "top_logprobs"),
        ("chat", {"modalities": ["audio"]}, "modalities"),
        ("chat", {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ("chat", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("responses", {"input": []}, "input"),
        ("responses", {"input": [{"type": "item_reference"}]}, "input[0].type"),
        ("responses", {"input": [{"type": "function_call"}]}, "input[0].call_id"),
        ("responses", {"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ("responses", {"previous_response_id": "x"}, "previous_response_id"),
        ("responses", {"conversation": "x"}, "conversation"),
        ("responses", {"prompt": {"id": "x"}}, "prompt"),
        ("responses", {"background": True}, "background"),
        ("responses", {"truncation": "auto"}, "truncation"),
        ("responses", {"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ("responses", {"tools": [{"type": "function"}]}, "tools[0].name"),
        ("responses", {"tools": [{"type": "function", "name": "a"}], "tool_choice": {}}, "tool_choice.name"),
        ("responses", {"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ("responses", {"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "text.format"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_refused_with_its_path(context, route, given, param):
    read, least, _ = ROUTES[route]
    error = refusal(read, context, **{**least, **given})
    assert (error.status, error.param) == (400, param)
    assert error.message


@pytest.mark.parametrize(
    ("given", "here"), [("n_predict", "max_tokens"), ("repeat_penalty", "repetition_penalty"), ("stop_words", "stop")]
)
def test_a_name_of_other_servers_is_refused_with_the_name_here(context, given, here):
    error = refusal(completions.read, context, prompt="a", **{given: 1})
    assert (error.param, error.code) == (given, "unknown_parameter")
    assert f"it is {here} here" in error.message


def test_known_names_of_other_servers_map_to_parameters_here():
    known = {name for _, _, kind in ROUTES.values() for name in kind.__struct_fields__}
    assert set(ELSEWHERE.values()) <= known
    assert not ELSEWHERE.keys() & known


@pytest.mark.parametrize("route", ROUTES)
def test_an_unknown_parameter_is_named_with_the_most_similar_one(context, route):
    read, least, _ = ROUTES[route]
    error = refusal(read, context, **least, temprature=1)
    assert (error.status, error.param, error.code) == (400, "temprature", "unknown_parameter")
    assert "`temperature`" in error.message
    assert refusal(read, context).code == "missing_required_parameter"
    assert refusal(read, context, **least, model="nobody").code == "model_not_found"


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"1", b"\xff", b'{"model": "\xff"}', b'{"model": "\\ud800"}', b"[" * 200_000,
             b'{"metadata": ' + b'{"a":' * 100_000, b'{"seed": ' + b"9" * 5000 + b"}", b'{"seed": 1e999}'],
)  # fmt: skip
def test_invalid_json_is_an_error_of_the_client(context, route, body):
    assert refusal(ROUTES[route][0], context, body).status == 400


def test_extra_parameters_that_clients_send_are_ignored(context):
    ignored = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "x",
               "prompt_cache_key": "k", "prompt_cache_retention": "24h"}  # fmt: skip
    for route in ROUTES:
        assert made(context, route, **ignored).requests == made(context, route).requests
    beside = {"stream_options": {"include_usage": True}, "verbosity": "low", "prediction": {"type": "content"}}
    assert made(context, "chat", **beside).requests == made(context, "chat").requests


def test_a_template_gets_the_messages_tools_and_variables(context):
    template = context.template
    assert isinstance(template, TagTemplate)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    given = [
        {"role": "system", "content": parts},
        {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "add", "arguments": "{}"}}],
         "reasoning": "hm"},
        {"role": "tool", "tool_call_id": "x", "content": "3", "extra": 1},
    ]  # fmt: skip
    made(context, "chat", messages=given, tools=TOOLS, reasoning_effort="low", chat_template_kwargs={"x": 1})
    call = template.calls.pop()
    first, second, third = call["messages"]
    assert first == {"role": "system", "content": "a\nb"}
    assert (second["content"], second["reasoning_content"], second["reasoning"]) == (None, "hm", "hm")
    assert third == given[2]
    assert call["variables"] == {"x": 1, "reasoning_effort": "low"}
    assert list(call["tools"]) == TOOLS
    assert (call["add_generation_prompt"], call["continue_final_message"]) == (True, False)
    made(context, "chat", continue_final_message=True)
    call = template.calls.pop()
    assert (call["add_generation_prompt"], call["continue_final_message"]) == (False, True)
    made(context, "chat", add_generation_prompt=False)
    assert template.calls.pop()["add_generation_prompt"] is False


def test_tool_choice_sets_the_constraint_of_the_answer(context):
    def held(choice: Any, **more: Any) -> tuple[Any, Any]:
        [request] = made(context, "chat", tools=TOOLS, tool_choice=choice, **more).requests
        return context.template.calls.pop()["tools"], request.params.processors  # type: ignore[attr-defined]

    assert held("auto") == held(None) == (tuple(TOOLS), ())
    assert held("none") == ((), ())
    assert held("required")[1] == (("grammar", {"lark": "calls ['add', 'sub'] True"}),)
    assert held("required", parallel_tool_calls=False)[1] == (("grammar", {"lark": "calls ['add', 'sub'] False"}),)
    named = {"type": "function", "function": {"name": "sub"}}
    assert held(named) == (tuple(TOOLS), (("grammar", {"lark": "calls sub False"}),))
    thinks = held(named, chat_template_kwargs={"enable_thinking": True})
    assert thinks[1] == (("grammar", {"lark": "calls sub False", "after": "</think>"}),)
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    assert held(allowed) == ((TOOLS[1],), (("grammar", {"lark": "calls ['sub'] True"}),))


def test_a_required_call_wins_over_the_form_of_a_text(context):
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    named = {"type": "function", "function": {"name": "sub"}}
    answer = made(context, "chat", tools=TOOLS, tool_choice=named, response_format=schema)
    assert answer.requests[0].params.processors == (("grammar", {"lark": "calls sub False"}),)
    assert answer.paths == {"grammar": "tools"}
    tools = [{"type": "function", "name": "add"}]
    text = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    answer = made(context, "responses", tools=tools, tool_choice={"type": "function", "name": "add"}, text=text)
    assert "lark" in answer.requests[0].params.processors[0][1]
    [request] = made(context, "chat", tools=TOOLS, response_format=schema).requests
    assert request.params.processors == (("grammar", {"json_schema": {"type": "object"}}),)


@pytest.mark.parametrize(
    ("route", "given", "path"),
    [
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
         "response_format.json_schema.schema"),
        ("completions", {"response_format": {"type": "json_schema", "schema": {}}}, "response_format.schema"),
        ("completions", {"response_format": {"type": "json_object"}}, "response_format"),
        ("completions", {"guided_json": {"type": "x"}}, "guided_json"),
        ("completions", {"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ("responses", {"text": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, "text.format.schema"),
    ],
)  # fmt: skip
def test_errors_of_a_grammar_name_the_parameter_that_asked_for_it(context, route, given, path):
    paths = made(context, route, **given).paths
    assert errors.of(RequestError("grammar json_schema", "it cannot be"), paths=paths).param == path
    assert errors.of(RequestError("temperature", "it cannot be"), paths=paths).param == "temperature"


def test_only_logit_processors_that_the_server_offers_are_accepted(context):
    offering = replace(context, logit_processors=("choice", "other"))
    named = {"other": None, "choice": ["yes", "no"]}
    for route in ROUTES:
        answer = made(offering, route, logit_processors=named, guided_regex="a+")
        expected = (("grammar", {"regex": "a+"}), ("other", None), ("choice", ["yes", "no"]))
        assert answer.requests[0].params.processors == expected
        assert answer.paths["choice"] == "logit_processors.choice"
    for wrong, offered in (("penalties", "choice, other"), ("x\n", "choice, other")):
        error = refusal(ROUTES["chat"][0], offering, **ROUTES["chat"][1], logit_processors={wrong: 1})
        assert error.param.startswith("logit_processors.") and offered in error.message
    error = refusal(ROUTES["chat"][0], context, **ROUTES["chat"][1], logit_processors=named)
    assert "it offers none" in error.message
    many = replace(context, logit_processors=tuple(map(str, range(9))))
    error = refusal(ROUTES["chat"][0], many, **ROUTES["chat"][1], logit_processors=dict.fromkeys(many.logit_processors))
    assert error.param == "logit_processors"


def test_items_of_a_response_are_messages(context):
    items = [
        {"role": "user", "content": "What is 1 + 2?"},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]},
        {"type": "function_call", "call_id": "x", "name": "add", "arguments": "{}"},
        {"type": "function_call", "call_id": "y", "name": "sub", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "x", "output": "3"},
    ]
    tools = [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}]
    made(context, "responses", input=items, instructions="Be brief.", tools=tools, reasoning={"effort": "low"},
         tool_choice={"type": "function", "name": "add"})  # fmt: skip
    call = context.template.calls.pop()  # type: ignore[attr-defined]
    calls = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for id_, name in (("x", "add"), ("y", "sub"))
    ]
    assert call["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 1 + 2?"},
        {"role": "assistant", "content": "I add.", "tool_calls": calls, "reasoning_content": "hm", "reasoning": "hm"},
        {"role": "tool", "tool_call_id": "x", "content": "3"},
    ]
    assert call["variables"] == {"reasoning_effort": "low"}
    assert list(call["tools"]) == [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def test_an_unknown_model_is_refused_before_rendering(context):
    assert refusal(chat.read, context, model="nobody", messages=[{"role": "user", "content": "Hi"}]).status == 404
    assert not context.template.calls  # type: ignore[attr-defined]


def test_adapters_merged_into_the_base_apply_to_calls_of_the_base(tokenizer):
    mix = (("bard", 0.5), ("coder", 0.5))
    context = context_of(tokenizer, adapter_of=lambda model: mix if model == "demo" else model)
    for route in ROUTES:
        assert made(context, route).requests[0].adapter == made(context, route, model="demo").requests[0].adapter == mix
        given = made(context, route, adapters=[{"name": "bard", "weight": 2}]).requests[0].adapter
        assert given == (("bard", 2.0),)


@pytest.mark.parametrize("depth", [900, 980, 990, 995, 1000, 5000])
def test_deep_nesting_is_answered_with_an_error(context, depth):
    nested = "[" * depth + "]" * depth
    for route, text in (
        ("completions", f'{{"prompt": {nested}}}'),
        ("completions", f'{{"prompt": "a", "guided_json": {{"a": {nested}}}}}'),
        ("chat", f'{{"messages": [{{"role": "user", "content": "a", "x": {nested}}}]}}'),
        ("responses", f'{{"input": "a", "metadata": {{"a": {nested}}}}}'),
        (
            "responses",
            f'{{"input": "a", "tools": [{{"type": "function", "name": "a", "parameters": {{"a": {nested}}}}}]}}',
        ),
    ):
        try:
            ROUTES[route][0](text.encode(), context)
        except ApiError as error:
            assert error.status == 400


def test_a_context_is_not_changed_by_a_body(context):
    kept = replace(context)
    made(context, "completions", temperature=0.5, n=2)
    assert context == kept


def test_bodies_of_embeddings_are_read():
    given = decode(b'{"input": ["a", "b"], "encoding_format": "base64"}', EmbeddingRequest)
    assert (given.input, given.encoding_format, given.pooling) == (["a", "b"], "base64", None)
    with pytest.raises(ApiError, match="encoding_format"):
        decode(b'{"input": "a", "encoding_format": "hex"}', EmbeddingRequest)


leaf = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 300), st.floats(), st.text(max_size=8),
    st.sampled_from(["auto", "required", "function", "json_schema", "add", "user", "text", "demo", "bard"]),
)  # fmt: skip
keys = st.one_of(
    st.sampled_from(["type", "role", "content", "text", "name", "function", "parameters", "schema", "json_schema",
                     "id", "arguments", "tool_calls", "format", "regex", "call_id", "output", "weight"]),
    st.text(max_size=5),
)  # fmt: skip
values = st.recursive(
    leaf, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)), max_leaves=12
)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("examples", [40, pytest.param(2000, marks=pytest.mark.nightly)])
def test_any_body_makes_an_answer_or_an_api_error(tokenizer, route, examples):
    read, least, kind = ROUTES[route]
    names = st.sampled_from([*kind.__struct_fields__, "nonsense"])
    context = context_of(tokenizer)

    @settings(max_examples=examples, deadline=None)
    @given(st.dictionaries(names, values, max_size=4), st.booleans())
    def check(body: dict[str, Any], is_complete: bool) -> None:
        try:
            answer = read(json.dumps({**(least if is_complete else {}), **body}).encode(), context)
        except ApiError as error:
            assert 400 <= error.status < 500
            assert json.loads(error.body())["error"]["message"]
        else:
            assert answer.requests

    check()
