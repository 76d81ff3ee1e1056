"""Parameters that are unknown here: what changes nothing is named, what could is refused, or obeyed after all."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from infeng_serve.protocol import chat, completions, responses
from infeng_serve.protocol.embedding_types import EmbeddingRequest
from infeng_serve.protocol.errors import ApiError
from infeng_serve.protocol.model_types import AdapterScale, LoadAdapter
from infeng_serve.protocol.openapi import document
from infeng_serve.protocol.reading import decode
from infeng_serve.protocol.token_types import DetokenizeRequest, TokenizeRequest
from infeng_serve.protocol.unknown_parameters import HARMLESS, MOST_NAMED, NEUTRAL, Ignored
from jsonschema import Draft202012Validator
from protocol_parts import SAID, body_of, context_of, scripted
from serve_parts import Running, running

BODIES: dict[Any, dict[str, Any]] = {
    completions.CompletionRequest: {"prompt": "x"},
    chat.ChatRequest: {"messages": [{"role": "user", "content": "x"}]},
    responses.ResponsesRequest: {"input": "x"},
    EmbeddingRequest: {"input": "x"},
    TokenizeRequest: {"prompt": "x"},
    DetokenizeRequest: {"tokens": [1]},
    LoadAdapter: {"lora_name": "x", "lora_path": "y"},
}


def named(ignored: Ignored) -> str:
    """Return what the header says."""
    return b"".join(value for _, value in ignored.headers()).decode()


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_harmless_unknown_parameters_are_accepted_and_named(kind):
    known = set(kind.__struct_fields__)
    given = dict.fromkeys(HARMLESS, "whatever")
    given |= {name: values[0] for name, values in NEUTRAL.items() if name not in known}
    for name, value in [*given.items(), ("function_call", None), ("nonsense", None)]:
        ignored = Ignored()
        decode(body_of(**BODIES[kind], **{name: value}), kind, ignored)
        assert named(ignored) == name


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("name", "value"),
    [("max_token", 5), ("use_beam_search", True), ("use_beam_search", 0),
     ("nonsense", 0), ("nonsense", ""), ("reasoning_format", "none"), ("include_stop_str_in_output", True)],
)  # fmt: skip
def test_unknown_parameters_that_could_change_an_answer_are_refused_by_default(kind, name, value):
    body = body_of(**BODIES[kind], **{name: value})
    with pytest.raises(ApiError) as caught:
        decode(body, kind, Ignored())
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, name, "unknown_parameter")
    ignored = Ignored(takes_all=True)
    assert decode(body, kind, ignored) == decode(body_of(**BODIES[kind]), kind)
    assert named(ignored) == name


NESTED: list[tuple[Any, dict[str, Any], str]] = [
    (chat.ChatRequest, {"stream_options": {"include_usage": True, "x": None}}, "stream_options.x"),
    (chat.ChatRequest, {"adapters": [{"name": "a"}, {"name": "b", "x": None}]}, "adapters[1].x"),
    (chat.ChatRequest, {"tool_choice": {"type": "function", "function": {"name": "f"}, "x": None}}, "tool_choice.x"),
    (chat.ChatRequest, {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "x": None}}},
     "response_format.json_schema.x"),
    (responses.ResponsesRequest, {"text": {"format": {"type": "text", "x": None}}}, "text.format.x"),
    (responses.ResponsesRequest, {"reasoning": {"effort": "low", "x": None}}, "reasoning.x"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "given", "path"), NESTED, ids=[path for _, _, path in NESTED])
def test_parts_of_a_body_have_their_paths(kind, given, path):
    ignored = Ignored()
    decode(body_of(**BODIES[kind], **given), kind, ignored)
    assert named(ignored) == path
    told = json.dumps(given)
    for value in ("1", '"keep"'):
        body = json.dumps({**BODIES[kind], **json.loads(told.replace('"x": null', f'"x": {value}'))}).encode()
        with pytest.raises(ApiError) as caught:
            decode(body, kind, Ignored())
        assert (caught.value.param, caught.value.code) == (path, "unknown_parameter")
        ignored = Ignored(takes_all=True)
        decode(body, kind, ignored)
        assert named(ignored) == path


def test_harmless_names_of_a_body_are_not_harmless_in_its_parts():
    with pytest.raises(ApiError, match=r"stream_options\.keep_alive"):
        decode(body_of(prompt="x", stream_options={"keep_alive": 1}), completions.CompletionRequest, Ignored())


def test_the_value_of_an_ignored_name_is_still_parsed():
    for body, param in ((b'{"keep_alive": 1, "prompt": 5}', "prompt"), (b'{"keep_alive": 1}', "prompt"),
                        (b'{"keep_alive": 1, "prompt": "x", "temprature": 1}', "temprature"),
                        (b'{"keep_alive": 1, "prompt": "x"', None)):  # fmt: skip
        for takes_all in (False, True):
            if takes_all and param == "temprature":
                continue
            with pytest.raises(ApiError) as caught:
                decode(body, completions.CompletionRequest, Ignored(takes_all))
            assert caught.value.param == param


def test_numeric_keys_and_lists_of_structs_are_still_decoded():
    ignored = Ignored()
    found = decode(body_of(prompt="x", logit_bias={"5": 1}, keep_alive=1), completions.CompletionRequest, ignored)
    assert found.logit_bias == {5: 1.0}
    scales = decode(b'[{"id": 1, "scale": 0.5, "path": null}]', list[AdapterScale], ignored)
    assert scales == [AdapterScale(id=1, scale=0.5)]
    assert named(ignored) == "keep_alive, [0].path"


def test_unknown_names_cannot_inject_headers():
    ignored = Ignored(takes_all=True)
    evil = {"a\r\nset-cookie: x": 1, "ü": 2, "": 3, "x" * 65: 4, "fine": 5}
    decode(body_of(prompt="x", **evil), completions.CompletionRequest, ignored)
    assert named(ignored) == "?, ?, ?, ?, fine"
    many = Ignored(takes_all=True)
    decode(body_of(prompt="x", **{f"n{i}": i for i in range(1000)}), completions.CompletionRequest, many)
    assert named(many).endswith(f", and {1000 - MOST_NAMED} more")
    assert len(named(many)) < 200


def test_each_item_is_examined_once_with_any_number_of_unknown_names(monkeypatch: pytest.MonkeyPatch):
    looked = 0
    inner = Ignored._pruned

    def counted(self: Ignored, *given: Any) -> Any:
        nonlocal looked
        looked += 1
        return inner(self, *given)

    monkeypatch.setattr(Ignored, "_pruned", counted)
    many = {f"n{i}": [[]] * 10 for i in range(5000)}
    decode(body_of(prompt=[1] * 5000, **many), completions.CompletionRequest, Ignored(takes_all=True))
    assert looked == 2  # the body and its prompt


def test_the_openapi_document_lists_the_accepted_parameters():
    for takes_all in (False, True):
        found = json.loads(document(takes_all))
        schema = {"$ref": "#/components/schemas/CompletionRequest", "components": found["components"]}
        takes = Draft202012Validator(schema)
        for more in ({"keep_alive": "5m"}, {"n_probs": 0}, {"nonsense": None}, {"stream_options": {"x": None}}):
            assert takes.is_valid({"prompt": "x", **more})
        for more in ({"n_probs": False}, {"nonsense": 1}, {"stream_options": {"x": 1}}):
            assert takes.is_valid({"prompt": "x", **more}) == (takes_all and "n_probs" not in more)


# ------------------------------------------------------------------------------------- what is obeyed after all ---


def test_template_variables_may_be_top_level_parameters(tokenizer):
    seen: list[Any] = []
    context = context_of(tokenizer)
    inner = context.template.prompt

    def prompt(messages: Any, **given: Any) -> Any:
        seen.append(given["variables"])
        return inner(messages, **given)

    context.template.prompt = prompt  # type: ignore[method-assign]
    documents = [{"title": "a", "text": "b"}]
    chat.read(body_of(**BODIES[chat.ChatRequest], enable_thinking=False, documents=documents), context)
    chat.read(body_of(**BODIES[chat.ChatRequest], chat_template_kwargs={"enable_thinking": True}), context)
    responses.read(body_of(input="x", enable_thinking=False), context)
    assert seen == [{"enable_thinking": False, "documents": documents}, {"enable_thinking": True},
                    {"enable_thinking": False}]  # fmt: skip


def test_reasoning_is_left_out_on_request(context):
    def message(**given: Any) -> dict[str, Any]:
        answer = chat.read(body_of(**BODIES[chat.ChatRequest], **given), context)
        events = scripted(context.tokenizer, answer.requests[0].prompt, SAID)
        done = events[-1].completion
        assert done is not None
        return dict(json.loads(answer.body([done]))["choices"][0]["message"])

    shown, hidden = message(), message(include_reasoning=False)
    assert shown["reasoning_content"]
    assert hidden == {name: value for name, value in shown.items() if not name.startswith("reasoning")}


def test_a_text_may_be_tokenized_without_the_beginning_of_text_token(served: Running):
    tokenizer = served.engine.tokenizer
    first = tokenizer.bos_id
    whole = tokenizer.encode(["Once upon"])[0]
    body = {"prompt": "Once upon", "max_tokens": 1, "prompt_logprobs": 0}
    tokens = served.ask("/tokenize", {"prompt": "Once upon", "add_special_tokens": False}).json["tokens"]
    answer = served.ask("/v1/completions", {**body, "add_special_tokens": False}).json
    assert answer["usage"]["prompt_tokens"] == len(tokens)
    assert tokens == (whole[1:] if whole[0] == first else whole)
    assert served.ask("/v1/completions", body).json["usage"]["prompt_tokens"] == len(whole)


# ------------------------------------------------------------------------------------------------------ over HTTP ---


@pytest.fixture(scope="module")
def lenient():
    """A server that ignores what it does not know."""
    with running(unknown_parameters="ignore") as found:
        yield found


def test_answers_name_the_parameters_without_effect(served: Running):
    quiet = {"max_tokens": 1, "keep_alive": "5m", "stream_options": {"include_usage": True}}
    for path, body in (("/v1/completions", {"prompt": "x", **quiet}),
                       ("/v1/chat/completions", {**BODIES[chat.ChatRequest], **quiet})):  # fmt: skip
        reply = served.ask(path, body)
        assert (reply.status, reply.headers["x-infeng-ignored"]) == (200, "keep_alive, stream_options")
        streamed = served.ask(path, {**body, "stream": True})
        assert (streamed.status, streamed.headers["x-infeng-ignored"]) == (200, "keep_alive")
    for path, body in (("/v1/responses", {"input": "x", "max_output_tokens": 1}), ("/v1/embeddings", {"input": "x"}),
                       ("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [5]})):  # fmt: skip
        assert "x-infeng-ignored" not in served.ask(path, body).headers
        assert served.ask(path, {**body, "request_id": "r"}).headers["x-infeng-ignored"] == "request_id"
        assert served.ask(path, {**body, "max_token": 1}).json["error"]["code"] == "unknown_parameter"


def test_a_server_may_ignore_all_unknown_parameters(lenient: Running):
    reply = lenient.ask("/v1/completions", {"prompt": "x", "max_tokens": 1, "max_token": 5, "a b": 1})
    assert (reply.status, reply.headers["x-infeng-ignored"]) == (200, "max_token, ?")
    schema = lenient.ask("/openapi.json").json["components"]["schemas"]["ChatRequest"]
    assert schema["additionalProperties"] is True
    assert lenient.ask("/v1/completions", {"prompt": "x", "max_tokens": "5"}).status == 400


def test_an_unknown_parameter_that_is_nested_too_deeply_is_an_error(served: Running):
    body = b'{"prompt": "x", "keep_alive": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert served.ask("/v1/completions", body).status == 400
    assert msgspec.json.decode(served.ask("/v1/completions", body).data)["error"]["code"] == "body_too_complex"
