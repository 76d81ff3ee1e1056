"""Requests of the service to requests of the engine, and its events to responses, without an engine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from infeng_demo import model_dir
from infeng_serve.protocol.bounds import MOST_BIASES, MOST_CHARACTERS, MOST_ITEMS
from infeng_serve.protocol.errors import ApiError
from infeng_serve.rpc import generate_input
from infeng_serve.rpc.fields import NOT_HERE
from infeng_serve.rpc.generate_answer import GenerateAnswer
from infeng_tokenizers.api import HfTokenizer
from protocol_parts import batches, context_of, scripted
from smg_grpc_proto import vllm_engine_pb2 as pb

from infeng_core.api import EngineConfig, Request, SamplingParams


@pytest.fixture(scope="module")
def tokenizer() -> HfTokenizer:
    return HfTokenizer(model_dir(), EngineConfig())


def read(tokenizer: HfTokenizer, model: str = "", **params: Any) -> Request:
    """Return the request of parameters, of a model that recommends some."""
    context = context_of(tokenizer, defaults={"temperature": 0.3, "top_k": 5})
    request = pb.GenerateRequest(text="The lion", sampling_params=pb.SamplingParams(**params))
    [found] = generate_input.read(request, model, context).requests
    return found


def test_parameters_that_are_not_given_are_neutral_not_the_models_recommendation(tokenizer: HfTokenizer):
    found = read(tokenizer)
    room = 256 - len(found.prompt)
    assert found.params == SamplingParams(max_tokens=room, skip_special_tokens=False)
    assert (found.adapter, found.tenant) == (None, "us")


def test_every_field_becomes_the_parameter_that_means_it(tokenizer: HfTokenizer):
    given: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.75, "top_k": 7, "min_p": 0.125, "frequency_penalty": 0.5, "presence_penalty": -1,
        "repetition_penalty": 1.25, "max_tokens": 9, "min_tokens": 2, "stop": ["x", "y"], "stop_token_ids": [3, 4],
        "skip_special_tokens": True, "ignore_eos": True, "logprobs": 3, "prompt_logprobs": 1, "seed": 11,
        "logit_bias": {5: 1.5},
    }  # fmt: skip
    expected = {**given, "stop": ("x", "y"), "stop_token_ids": (3, 4), "logit_bias": ((5, 1.5),)}
    found = read(tokenizer, "bard", **given)
    assert found.params == SamplingParams(**expected)
    assert found.adapter == "bard"


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({"stop": ["x"] * (MOST_ITEMS + 1)}, "stop"),
        ({"stop_token_ids": [5] * (MOST_BIASES + 1)}, "stop_token_ids"),
        ({"logit_bias": dict.fromkeys(range(MOST_BIASES + 1), 1.0)}, "logit_bias"),
        *(({name: "x" * (4 * MOST_CHARACTERS + 1)}, name) for name in ("json_schema", "regex", "grammar")),
        ({"choice": pb.ChoiceConstraint(choices=["x"] * (MOST_ITEMS + 1))}, "choice.choices"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_oversized_field_is_refused_before_it_is_copied(
    tokenizer: HfTokenizer, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any], path: str
):
    def refuse(*_: object) -> None:
        raise AssertionError("it was looked at")

    monkeypatch.setattr(generate_input.structured, "one", refuse)
    if path != "choice.choices":
        monkeypatch.setattr(generate_input, "_parameters", refuse)
    with pytest.raises(ApiError, match=r"and at most \d+ are taken") as caught:
        read(tokenizer, **params)
    assert caught.value.param == f"sampling_params.{path}"


def test_every_field_of_the_published_service_is_accepted_or_refused_with_a_reason():
    params = {field.name for field in pb.SamplingParams.DESCRIPTOR.fields}
    request = {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields}
    assert params >= generate_input.PARAMS
    assert request >= generate_input.REQUEST
    assert params | request >= NOT_HERE.keys()


@pytest.mark.parametrize("top", [None, 0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_chunks_have_each_token_once_also_when_merged(tokenizer: HfTokenizer, top: int | None, seed: int):
    params = SamplingParams(logprobs=top)
    events = [scripted(tokenizer, [1, 5], text, top=top) for text in ("The lion was big.", "A cat", "No")]
    answer = GenerateAnswer([Request((1, 5), params)] * 3, streams=True, tokenizer=tokenizer)
    tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
    values: Counter[int] = Counter()
    ends: dict[int, Any] = {}
    for choice, some in batches(events, seed):
        for message in answer.messages(choice, some):
            if message.HasField("complete"):
                ends[choice] = message.complete
                continue
            assert choice not in ends
            chunk = message.chunk
            assert chunk.index == choice
            assert chunk.completion_tokens == len(chunk.token_ids)
            assert chunk.HasField("output_logprobs") == (top is not None)
            tokens[choice] += chunk.token_ids
            values[choice] += len(chunk.output_logprobs.token_logprobs)
            assert len(chunk.output_logprobs.top_logprobs) == (len(chunk.token_ids) if top else 0)
    for choice, all_ in enumerate(events):
        completion = all_[-1].completion
        assert completion is not None
        assert tuple(tokens[choice]) == tuple(ends[choice].output_ids) == completion.token_ids
        assert values[choice] == (0 if top is None else len(tokens[choice]))
        assert ends[choice] == answer.complete(choice, completion).complete
        told = MessageToDict(ends[choice], preserving_proto_field_name=True)
        assert told["finish_reason"] == "stop"
        assert (told["cached_tokens"], told["spec_accepted_tokens"], told["spec_draft_tokens"]) == (2, 1, 3)
        assert not {"matched_token_id", "matched_stop_str"} & told.keys()


@pytest.mark.parametrize(("reason", "told"), [("length", "length"), ("timeout", "length"), ("cancelled", "abort")])
def test_finish_reasons_are_in_the_terms_of_the_service(tokenizer: HfTokenizer, reason: str, told: str):
    answer = GenerateAnswer([Request((1, 5))], streams=False, tokenizer=tokenizer)
    completion = scripted(tokenizer, [1, 5], "The lion", reason)[-1].completion
    assert completion is not None
    assert answer.complete(0, completion).complete.finish_reason == told
