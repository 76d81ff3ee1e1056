"""The routes of llama.cpp's server, and the behaviour that its own tests of them ask for."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

import httpx
import pytest
from dialect_parts import speaking
from infeng_serve.auth import Keys
from openai import OpenAI
from serve_parts import Running, held

QUESTION = [{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best book"}]


def events(data: bytes) -> list[Any]:
    """Return the data of a stream's events."""
    return [json.loads(frame.removeprefix("data: ")) for frame in data.decode().split("\n\n") if frame]


# ------------------------------------------------------------------------------------------------------ completion ---


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_text_is_completed_and_streamed_as_by_openais_route(served: Running, path: str):
    wanted = served.ask("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}).json
    body = {"prompt": "Once upon a time", "n_predict": 12, "temperature": 0, "return_tokens": True}
    made = served.ask(path, body).json
    assert made["content"] == wanted["choices"][0]["text"]
    assert (made["stop"], made["stop_type"], made["model"]) == (True, "limit", "demo")
    assert made["tokens_predicted"] == len(made["tokens"]) == made["timings"]["predicted_n"] == 12
    assert made["tokens_evaluated"] == wanted["usage"]["prompt_tokens"]
    assert made["timings"]["prompt_n"] + made["timings"]["cache_n"] == made["tokens_evaluated"]
    pieces = events(served.ask(path, {**body, "stream": True}).data)
    assert "".join(piece["content"] for piece in pieces) == made["content"]
    assert [token for piece in pieces for token in piece["tokens"]] == made["tokens"]
    assert [piece["stop"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1]["tokens_predicted"] == 12


def test_prompts_may_be_ids_mixed_or_several(served: Running):
    def made(prompt: Any) -> Any:
        return served.ask("/completion", {"prompt": prompt, "n_predict": 6, "temperature": 0}).json

    ids = served.engine.tokenize("Once upon a time")
    text = made("Once upon a time")["content"]
    assert made(ids)["content"] == text
    assert made([*ids[:2], served.engine.tokenizer.decode(ids[2:])])["tokens_evaluated"] == len(ids)
    both = made(["Once upon a time", "The sea"])
    assert [one["index"] for one in both] == [0, 1]
    assert [one["content"] for one in both] == [text, made("The sea")["content"]]


def test_a_stop_string_is_named_and_so_is_an_end_token(served: Running):
    body = {"prompt": "Once upon a time", "n_predict": 12, "temperature": 0}
    whole = served.ask("/completion", body).json["content"]
    word = whole.split()[2]
    made = served.ask("/completion", {**body, "stop": ["@@", word]}).json
    assert (made["stop_type"], made["stopping_word"], made["content"]) == ("word", word, whole[: whole.index(word)])
    end = served.engine.tokenizer.eos_id
    made = served.ask("/completion", {**body, "logit_bias": [[end, 100]]}).json
    assert (made["stop_type"], made["content"]) == ("eos", "")


def test_probabilities_name_the_tokens(served: Running):
    body = {"prompt": "Once upon a time", "n_predict": 4, "temperature": 0, "n_probs": 3, "return_tokens": True}
    made = served.ask("/completion", body).json
    known = made["completion_probabilities"]
    assert [one["id"] for one in known] == made["tokens"]
    assert all(len(one["top_logprobs"]) == 3 and one["top_logprobs"][0]["id"] == one["id"] for one in known)
    assert all(one["logprob"] <= 0 and bytes(one["bytes"]).decode() == one["token"] for one in known)


def test_a_biased_word_and_a_grammar_have_an_effect(served: Running):
    body = {"prompt": "Once upon a time", "n_predict": 5, "temperature": 0}
    whole = served.ask("/completion", body).json["content"]
    made = served.ask("/completion", {**body, "logit_bias": [[whole.split(",")[0][:6], False]]}).json["content"]
    assert made != whole
    held_to = served.ask("/completion", {**body, "grammar": 'root ::= "a"{5,5}'}).json["content"]
    assert held_to == "aaaaa"
    schema = served.ask("/completion", {**body, "n_predict": 20, "json_schema": {"const": "42"}}).json["content"]
    assert schema == '"42"'


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompt": ""}, "prompt: it is empty"),
        ({"prompt": ["a", {}]}, "prompt: it is not"),
        ({"prompt": "x " * 9000}, "context"),
        ({"n_predct": 5}, "n_predict"),
        ({"logit_bias": [[1]]}, "logit_bias[0]"),
        ({"logit_bias": [[None, 1]]}, "logit_bias[0]"),
        ({"mirostat": 2}, "mirostat"),
        ({"repeat_penalty": 1.1, "repeat_last_n": 64}, "repeat_last_n"),
        ({"post_sampling_probs": True}, "post_sampling_probs"),
    ],
)
def test_errors_have_its_form(served: Running, given: Any, said: str):
    reply = served.ask("/completion", {"prompt": "Hi", "n_predict": 1, **given})
    assert reply.status == reply.json["error"]["code"] == 400
    assert said in reply.json["error"]["message"]
    assert reply.json["error"]["type"] in ("invalid_request_error", "exceed_context_size_error")


def test_a_text_is_filled_in_only_where_the_tokenizer_can(served: Running):
    reply = served.ask("/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert reply.status == 400
    assert "no tokens for filling in" in reply.json["error"]["message"]


# ---------------------------------------------------------------------------------------------------- what is told ---


def test_properties_slots_and_templates_are_told(served: Running):
    props = served.ask("/props").json
    assert props["default_generation_settings"]["n_ctx"] == 1024
    slots = served.ask("/slots").json
    assert len(slots) == props["total_slots"]
    assert not any(slot["is_processing"] for slot in slots)
    assert served.ask("/props", {}).status == 405
    assert served.ask("/models").json == served.ask("/v1/models").json


def test_running_requests_occupy_slots_and_their_prompts_are_not_shown():
    with speaking(names=["demo"], overrides={"scheduler.max_running": 1}) as served:
        assert served.ask("/slots?fail_on_no_slot=1").status == 200
        with held(served.engine, 1) as may_go_on:
            body = {"prompt": "a secret", "n_predict": 20, "stream": True}
            with httpx.stream("POST", f"{served.url}/completion", json=body, timeout=30) as response:
                parts = response.iter_bytes()
                next(parts)
                reply = served.ask("/slots")
                assert reply.json[0]["is_processing"]
                assert b"secret" not in reply.data
                assert served.ask("/slots?fail_on_no_slot=1").status == 503
                may_go_on.set()
                assert b'"stop":true' in b"".join(parts)


# -------------------------------------------------------------------------------- the behaviour of test_security.py ---


@pytest.fixture(scope="module")
def guarded() -> Any:
    with speaking(names=["demo"], keys=Keys(["sk-right"]), cors=["http://web.example"]) as found:
        yield found


@pytest.mark.parametrize("path", ["/health", "/", "/page.js", "/page.css"])
def test_liveness_and_the_page_need_no_key(guarded: Running, path: str):
    assert guarded.ask(path).status == 200


@pytest.mark.parametrize("header", [{}, {"authorization": "Bearer wrong"}, {"x_api_key": "wrong"}])
def test_a_missing_or_wrong_key_is_an_authentication_error(guarded: Running, header: dict[str, str]):
    reply = guarded.ask("/completions", {"prompt": "Hi"}, **header)
    assert (reply.status, reply.json["error"]["type"]) == (401, "authentication_error")


@pytest.mark.parametrize("header", [{"authorization": "Bearer sk-right"}, {"x_api_key": "sk-right"}])
def test_a_key_is_taken_from_both_headers(guarded: Running, header: dict[str, str]):
    reply = guarded.ask("/completions", {"prompt": "I believe the meaning of life is", "n_predict": 4}, **header)
    assert reply.status == 200
    assert "content" in reply.json
    assert guarded.ask("/v1/models", **header).status == 200


def test_openais_client_answers_without_v1_in_its_address(guarded: Running):
    client = OpenAI(api_key="sk-right", base_url=guarded.url)
    made = client.chat.completions.create(model="demo", messages=QUESTION, max_tokens=4)  # type: ignore[arg-type]
    assert len(made.choices) == 1


def test_a_page_of_an_allowed_origin_may_call_with_the_headers_it_asks_for(guarded: Running):
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "Authorization, X-Api-Key"}
    reply = guarded.ask("/completions", method="OPTIONS", origin="http://web.example", **asked)
    assert reply.headers["access-control-allow-origin"] == "http://web.example"
    assert reply.headers["access-control-allow-headers"] == "Authorization, X-Api-Key"
    assert "POST" in reply.headers["access-control-allow-methods"]
    reply = guarded.ask("/completions", method="OPTIONS", origin="http://other.example", **asked)
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("url", ["file://x.jpeg", "file://../x.jpeg"])
def test_no_file_is_read_for_a_message(served: Running, url: str):
    parts = [{"type": "text", "text": "test"}, {"type": "image_url", "image_url": {"url": url}}]
    reply = served.ask("/chat/completions", {"max_tokens": 1, "messages": [{"role": "user", "content": parts}]})
    assert reply.status == 400


# -------------------------------------------------------------------------------- the behaviour of test_tokenize.py ---


def test_a_content_is_tokenized_and_back(served: Running):
    text = "What is the capital of France ?"
    tokens = served.ask("/tokenize", {"content": text}).json["tokens"]
    assert len(tokens) > 5
    assert served.ask("/detokenize", {"tokens": tokens}).json["content"].strip() == text
    bos = served.engine.tokenizer.bos_id
    assert tokens[0] != bos
    assert served.ask("/tokenize", {"content": text, "add_special": True}).json["tokens"] == [bos, *tokens]
    assert served.ask("/tokenize", {"content": ""}).json["tokens"] == []


def test_pieces_are_texts_or_bytes(served: Running):
    text = "This is a test string with unicode 媽 and emoji 🤗"
    tokens = served.ask("/tokenize", {"content": text, "with_pieces": True}).json["tokens"]
    assert all(token["id"] > 0 and len(token["piece"]) > 0 for token in tokens)
    data = b"".join(bytes(one["piece"]) if isinstance(one["piece"], list) else one["piece"].encode() for one in tokens)
    assert data.decode() == text
    special = served.ask("/tokenize", {"content": "</s>"}).json["tokens"]
    assert special == [served.engine.tokenizer.eos_id]
    assert len(served.ask("/tokenize", {"content": "</s>", "parse_special": False}).json["tokens"]) > 1
    assert served.ask("/tokenize", {"content": "a", "prompt": "b"}).status == 400


# ------------------------------------------------------------------------- the behaviour of test_chat_completion.py ---


def test_a_conversation_is_answered_and_streamed_without_v1(served: Running):
    body = {"messages": QUESTION, "max_tokens": 8, "temperature": 0}
    made = served.ask("/chat/completions", body).json
    assert "cmpl" in made["id"]
    assert made["usage"]["completion_tokens"] == 8
    assert (made["choices"][0]["message"]["role"], made["choices"][0]["finish_reason"]) == ("assistant", "length")
    reply = served.ask("/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
    chunks = [one for one in reply.events if one != "[DONE]"]
    assert len({one["id"] for one in chunks}) == 1
    text = "".join(one["choices"][0]["delta"].get("content", "") for one in chunks if one["choices"])
    assert text == made["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"]["completion_tokens"] == 8


def test_a_template_is_applied_and_an_assistants_last_turn_continued(served: Running):
    assert served.ask("/apply-template", {"messages": QUESTION}).json["prompt"].endswith("Answer:")
    for prefill in ("Whill", [{"type": "text", "text": "Whill"}]):
        turns = [*QUESTION, {"role": "assistant", "content": prefill}]
        assert served.ask("/apply-template", {"messages": turns}).json["prompt"].endswith("Answer: Whill")


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ({"type": "json_object", "schema": {"const": "42"}}, '"42"'),
        ({"type": "json_schema", "json_schema": {"schema": {"const": "foooooo"}}}, '"foooooo"'),
        ({"type": "sound"}, None),
        ({"type": "json_object", "schema": 123}, None),
        ({"type": "json_object", "schema": {"type": 123}}, None),
        ({"type": "json_object", "schema": {"type": "hiccup"}}, None),
    ],
)
def test_forms_of_an_answer(served: Running, form: Any, wanted: str | None):
    reply = served.ask("/chat/completions", {"max_tokens": 20, "messages": QUESTION, "response_format": form})
    assert reply.status == (200 if wanted else 400)
    if wanted:
        assert reply.json["choices"][0]["message"]["content"] == wanted


def test_a_schema_or_a_grammar_beside_the_messages_holds_the_answer(served: Running):
    for form, wanted in (({"json_schema": {"const": "42"}}, '"42"'), ({"grammar": 'root ::= "a"{5,5}'}, "aaaaa")):
        made = served.ask("/chat/completions", {"messages": QUESTION, "max_tokens": 12, **form}).json
        assert made["choices"][0]["message"]["content"] == wanted


@pytest.mark.parametrize(
    "messages",
    [None, "string", [123], [{}], [{"role": 123}], [{"role": "system", "content": 123}],
     [{"role": "system", "content": "test"}, {}]],
)  # fmt: skip
def test_invalid_messages_are_refused(served: Running, messages: Any):
    reply = served.ask("/chat/completions", {"messages": messages})
    assert reply.status == 400
    assert "error" in reply.json


@pytest.mark.parametrize("streams", [False, True])
def test_log_probabilities_spell_the_answer(served: Running, streams: bool):
    client = OpenAI(api_key="none", base_url=f"{served.url}/v1")
    given: Any = {"model": "demo", "messages": QUESTION, "max_tokens": 5, "temperature": 0.0, "logprobs": True,
                  "top_logprobs": 10}  # fmt: skip
    if streams:
        choices = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, **given) if chunk.choices]
        text = "".join(choice.delta.content or "" for choice in choices)
    else:
        choices = [client.chat.completions.create(**given).choices[0]]
        text = choices[0].message.content
    tokens = [one for choice in choices if choice.logprobs for one in choice.logprobs.content or ()]
    assert "".join(one.token for one in tokens) == text
    assert all(one.logprob <= 0 and one.bytes is not None and one.top_logprobs for one in tokens)


# ------------------------------------------------------------------------------- the behaviour of test_embedding.py ---


def test_vectors_have_length_1_and_do_not_depend_on_the_batch(served: Running):
    texts = ["I believe the meaning of life is", "Write a joke about AI", "This is a test", "This is a test"]
    found = served.ask("/v1/embeddings", {"input": texts}).json
    vectors = [one["embedding"] for one in found["data"]]
    assert len(vectors) == 4
    assert all(math.isclose(math.hypot(*vector), 1, abs_tol=1e-3) for vector in vectors)
    assert vectors[2] == vectors[3]
    assert served.ask("/v1/embeddings", {"input": texts[0]}).json["data"][0]["embedding"] == vectors[0]
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"]
    for pooling in ("last", "mean"):
        one = served.ask("/v1/embeddings", {"input": texts[0], "pooling": pooling}).json["data"][0]["embedding"]
        assert math.isclose(math.hypot(*one), 1, abs_tol=1e-3)
    assert served.ask("/v1/embeddings", {"input": texts[0], "pooling": "none"}).status == 400


@pytest.mark.parametrize(
    ("given", "count"), [("string", 1), ([12, 34, 56], 1), (["a", "b"], 2), ([[12, 34, 56], [12, 34]], 2)]
)
def test_inputs_may_be_texts_or_ids(served: Running, given: Any, count: int):
    assert len(served.ask("/v1/embeddings", {"input": given}).json["data"]) == count
    for path, name in (("/embeddings", "input"), ("/embedding", "content")):
        found = served.ask(path, {name: given}).json
        assert [one["index"] for one in found] == list(range(count))
        assert all(len(one["embedding"]) == 1 and len(one["embedding"][0]) == 256 for one in found)


@pytest.mark.parametrize("given", [[], {"content": "string"}, {"content": [{"type": "input_audio"}]}])
def test_invalid_inputs_are_refused(served: Running, given: Any):
    for path in ("/v1/embeddings", "/embeddings"):
        assert served.ask(path, {"input": given}).status == 400
    assert served.ask("/embeddings", {}).status == 400


def test_a_text_that_is_too_long_is_refused(served: Running):
    reply = served.ask("/v1/embeddings", {"input": "This is a test " * 512})
    assert (reply.status, reply.json["error"]["code"]) == (400, "context_length_exceeded")


def test_base64_has_the_same_numbers(served: Running):
    plain = served.ask("/v1/embeddings", {"input": "a test"}).json["data"][0]["embedding"]
    packed = served.ask("/v1/embeddings", {"input": "a test", "encoding_format": "base64"}).json["data"][0]["embedding"]
    data = base64.b64decode(packed)
    assert list(struct.unpack(f"<{len(data) // 4}f", data)) == pytest.approx(plain)
