"""Answers by gRPC: the tokens of HTTP and of the engine, whichever way a prompt and its parameters are given."""

from __future__ import annotations

from typing import Any

import pytest
from rpc_parts import Client, asked
from serve_parts import Running, held
from smg_grpc_proto import vllm_engine_pb2 as pb

from infeng_core.api import SamplingParams

PROMPT = "Once upon a time"


def http(served: Running, **more: Any) -> Any:
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12, "model": "model", **more}
    reply = served.ask("/v1/completions", body)
    assert reply.status == 200, reply.json
    return reply.json


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.8, "seed": 7, "top_k": 40, "top_p": 0.9},
        {"temperature": 1.0, "seed": 3, "min_p": 0.02, "frequency_penalty": 0.5, "presence_penalty": 0.25},
        {"repetition_penalty": 1.5, "logit_bias": {300: 100.0}, "min_tokens": 3, "ignore_eos": True},
        {"stop": ["the", "a t"], "max_tokens": 40},
        {"stop_token_ids": [262, 300], "max_tokens": 40},
    ],
)
def test_tokens_equal_those_of_http_and_of_the_engine(served: Running, client: Client, params: dict[str, Any]):
    expected = served.engine.generate(PROMPT, SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **params}))[0]
    [complete] = client.complete(asked(**params))
    assert tuple(complete.output_ids) == expected.token_ids
    assert complete.finish_reason == expected.finish_reason
    as_json = (
        {**params, "logit_bias": {str(k): v for k, v in params["logit_bias"].items()}}
        if "logit_bias" in params
        else params
    )
    answer = http(served, **as_json)
    assert answer["choices"][0]["text"] == expected.text
    assert complete.prompt_tokens == answer["usage"]["prompt_tokens"]
    assert complete.completion_tokens == answer["usage"]["completion_tokens"]


def test_a_stream_sends_each_token_once_and_all_with_its_end(served: Running, client: Client):
    messages = []
    with held(served.engine, first=4) as may_go_on:
        for message in client.generate(asked(stream=True, max_tokens=24)):
            messages.append(message)
            may_go_on.set()  # so that a token has come before the last one is computed, however busy the machine is
    chunks, complete = [one.chunk for one in messages[:-1]], messages[-1].complete
    assert len(chunks) > 1
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    [whole] = client.complete(asked(max_tokens=24))
    assert tokens == list(complete.output_ids) == list(whole.output_ids)
    assert sum(chunk.completion_tokens for chunk in chunks) == complete.completion_tokens == 24
    assert {chunk.prompt_tokens for chunk in chunks} == {complete.prompt_tokens}


def test_token_ids_are_taken_as_they_are(served: Running, client: Client):
    ids = served.engine.tokenize(PROMPT)
    request = pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=ids, original_text="only for reading"),
        sampling_params=asked().sampling_params,
    )
    assert client.complete(request) == client.complete(asked())


def test_choices_have_their_numbers_and_the_seeds_of_http(served: Running, client: Client):
    more: dict[str, Any] = {"temperature": 1.0, "seed": 5, "n": 3}
    texts = [choice["text"] for choice in http(served, **more)["choices"]]
    completes = client.complete(asked(**more))
    assert [served.engine.tokenizer.decode(one.output_ids) for one in completes] == texts
    streamed: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for one in client.generate(asked(stream=True, **more)):
        if one.HasField("chunk"):
            streamed[one.chunk.index] += one.chunk.token_ids
    assert list(streamed.values()) == [list(one.output_ids) for one in completes]


def test_without_max_tokens_an_answer_may_fill_the_context(served: Running, client: Client):
    request = asked(ignore_eos=True, text="x")
    request.sampling_params.ClearField("max_tokens")
    prompt = served.engine.limits.context - 20
    request.tokenized.input_ids.extend([5] * prompt)
    [complete] = client.complete(request)
    assert (complete.completion_tokens, complete.finish_reason) == (20, "length")


def test_the_stop_that_ended_an_answer_is_reported(served: Running, client: Client):
    whole = list(client.complete(asked(max_tokens=24))[0].output_ids)
    [by_token] = client.complete(asked(max_tokens=24, stop_token_ids=[whole[5]]))
    assert by_token.WhichOneof("matched_stop") == "matched_token_id"
    assert by_token.matched_token_id == whole[5]
    word = served.engine.tokenizer.decode(whole[4:7]).strip()
    [by_text] = client.complete(asked(max_tokens=24, stop=["nowhere at all", word]))
    assert (by_text.finish_reason, by_text.matched_stop_str) == ("stop", word)
    [by_length] = client.complete(asked())
    assert by_length.WhichOneof("matched_stop") is None


def test_log_probabilities_equal_the_engines(served: Running, client: Client):
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=1)
    expected = served.engine.generate(PROMPT, params)[0]
    [complete] = client.complete(asked(max_tokens=4, logprobs=2, prompt_logprobs=1))
    found = complete.output_logprobs
    assert list(found.token_ids) == list(expected.token_ids)
    assert list(found.token_logprobs) == pytest.approx([one.logprob for one in expected.logprobs])
    assert [list(top.token_ids) for top in found.top_logprobs] == [[t for t, _ in one.top] for one in expected.logprobs]
    prompt = complete.input_logprobs
    assert list(prompt.token_ids) == served.engine.tokenize(PROMPT)
    assert not prompt.token_logprobs[0].HasField("value")
    values = [one.logprob for one in expected.prompt_logprobs if one is not None]
    assert [one.value for one in prompt.token_logprobs[1:]] == pytest.approx(values)
    streamed = [one.chunk.output_logprobs for one in client.generate(asked(max_tokens=4, logprobs=0, stream=True))]
    assert [value for one in streamed for value in one.token_logprobs] == list(found.token_logprobs)
    assert not any(one.top_logprobs for one in streamed)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"regex": "[a-c]{5}"}, {"regex": "[a-c]{5}"}),
        ({"choice": pb.ChoiceConstraint(choices=["yes", "no"])}, {"choice": ["yes", "no"]}),
        ({"json_schema": '{"type": "boolean"}'}, {"json": {"type": "boolean"}}),
        ({"grammar": 'start: "x" "y"'}, {"grammar": 'start: "x" "y"'}),
        ({"grammar": 'root ::= "x" [y-z]'}, {"regex": "x[yz]"}),
        ({"json_object": True, "max_tokens": 16}, {"json_object": True}),
    ],
)
def test_constraints_hold_as_with_http(served: Running, client: Client, given: Any, same: Any):
    [complete] = client.complete(asked(**given))
    more = {name: value for name, value in given.items() if name == "max_tokens"}
    text = http(served, structured_outputs=same, **more)["choices"][0]["text"]
    assert served.engine.tokenizer.decode(complete.output_ids) == text
    assert "json_object" in given or complete.finish_reason == "stop"


def test_an_adapter_is_chosen_by_the_metadata_model(served: Running, client: Client):
    found = {name: tuple(client.complete(asked(), model=name)[0].output_ids) for name in ("base", "bard", "coder")}
    assert len(set(found.values())) == 3
    params = SamplingParams(temperature=0.0, max_tokens=12)
    for name, tokens in found.items():
        adapter = None if name == "base" else name
        assert served.engine.generate(PROMPT, params, adapters=adapter)[0].token_ids == tokens


def test_a_vector_is_that_of_http(served: Running, client: Client):
    ids = served.engine.tokenize(PROMPT)
    request = pb.EmbedRequest(tokenized=pb.TokenizedInput(input_ids=ids))
    for model in ("model", "bard"):
        found = client.stub.Embed(request, metadata=[("model", model)])
        expected = served.ask("/v1/embeddings", {"input": ids, "model": model}).json["data"][0]["embedding"]
        assert list(found.embedding) == expected
        assert (found.prompt_tokens, found.embedding_dim) == (len(ids), len(expected))
