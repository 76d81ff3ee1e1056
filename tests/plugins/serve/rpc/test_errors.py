"""What is refused: by which code, naming which field."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from rpc_parts import Client, asked, field, refused
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import common_pb2

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("params", "at"),
    [
        ({"temperature": -1.0}, "sampling_params.temperature"),
        ({"top_p": 1.5}, "sampling_params.top_p"),
        ({"max_tokens": 0}, "sampling_params.max_tokens"),
        ({"n": 17}, "sampling_params.n"),
        ({"logprobs": -1}, "sampling_params.logprobs"),
        ({"prompt_logprobs": 1000}, "sampling_params.prompt_logprobs"),
        ({"logit_bias": {-5: 1.0}}, "sampling_params.logit_bias"),
        ({"stop": [""]}, "sampling_params.stop"),
        ({"truncate_prompt_tokens": 5}, "sampling_params.truncate_prompt_tokens"),
        ({"include_stop_str_in_output": True}, "sampling_params.include_stop_str_in_output"),
        ({"structural_tag": "{}"}, "sampling_params.structural_tag"),
        ({"json_schema": "{"}, "sampling_params.json_schema"),
        ({"choice": pb.ChoiceConstraint()}, "sampling_params.choice"),
        ({"regex": "(("}, "sampling_params.regex"),
    ],
)
def test_an_error_names_the_invalid_parameter(client: Client, params: dict[str, Any], at: str):
    code, details, error = refused(lambda: client.complete(asked(**params)))
    assert (code, field(details)) == (INVALID, at)
    assert at.split(".")[-1] in error.details() or "regex" in params


@pytest.mark.parametrize(
    ("more", "at"),
    [
        ({"tokenized": pb.TokenizedInput()}, "tokenized.input_ids"),
        ({"tokenized": pb.TokenizedInput(input_ids=[10**6])}, "tokenized.input_ids"),
        ({"tokenized": pb.TokenizedInput(input_ids=[5] * 100_000)}, "tokenized.input_ids"),
        ({"text": "x" * 1_000_000}, "text"),
        ({"kv_transfer_params_json": "{}"}, "kv_transfer_params_json"),
        ({"mm_inputs": pb.MultimodalInputs()}, "mm_inputs"),
        ({"media_refs": pb.MediaRefs()}, "media_refs"),
        ({"data_parallel_rank": 1}, "data_parallel_rank"),
    ],
)
def test_an_error_names_an_invalid_prompt_or_an_unsupported_feature(client: Client, more: dict[str, Any], at: str):
    request = asked()
    request.MergeFrom(pb.GenerateRequest(**more))
    code, details, _ = refused(lambda: client.complete(request))
    assert (code, field(details)) == (INVALID, at)


def test_neither_text_nor_tokens_is_refused(client: Client):
    request = asked()
    request.ClearField("text")
    code, details, _ = refused(lambda: client.complete(request))
    assert (code, field(details)) == (INVALID, "input")


def test_fields_of_a_later_version_of_the_service_are_refused_by_their_numbers(client: Client):
    request = asked()
    later = pb.SamplingParams.FromString(b"\xb8\x3e\x01")  # field 999, a varint
    request.sampling_params.MergeFrom(later)
    code, details, error = refused(lambda: client.complete(request))
    assert (code, field(details)) == (INVALID, "sampling_params.999")
    assert "vllm.grpc.engine.SamplingParams" in error.details()


def test_defaults_of_the_gateway_change_nothing(client: Client):
    told = asked(spaces_between_special_tokens=True, grammar_from_first_token=True)
    assert client.complete(told) == client.complete(asked())


def test_an_unknown_adapter_is_not_found(client: Client):
    code, details, _ = refused(lambda: client.complete(asked(), model="poet"))
    assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.NOT_FOUND, "model_not_found")


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("FlushCache", common_pb2.FlushCacheRequest()),
        ("StartProfile", common_pb2.StartProfileRequest()),
        ("StopProfile", common_pb2.StopProfileRequest()),
        ("SubscribeKvEvents", common_pb2.SubscribeKvEventsRequest()),
    ],
)
def test_an_unsupported_method_is_unimplemented_with_a_reason(client: Client, method: str, request_: Any):
    call = getattr(client.stub, method)
    code, _, error = refused(lambda: list(call(request_)) if method == "SubscribeKvEvents" else call(request_))
    assert code == grpc.StatusCode.UNIMPLEMENTED
    assert error.details().startswith(f"{method} is not served: ")


def test_another_data_parallel_rank_is_refused(client: Client):
    code, details, _ = refused(lambda: client.stub.GetLoads(pb.GetLoadsRequest(dp_rank=1)))
    assert (code, field(details)) == (INVALID, "dp_rank")


@pytest.mark.parametrize("method", ["Generate", "Embed", "Abort", "HealthCheck", "GetModelInfo", "GetTokenizer"])
@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x7f", b"\x0b" * 10_000])
def test_a_message_that_cannot_be_parsed_is_the_caller_s_fault(client: Client, method: str, data: bytes):
    path = f"/vllm.grpc.engine.VllmEngine/{method}"
    make = client.channel.unary_stream if method in ("Generate", "GetTokenizer") else client.channel.unary_unary
    call = make(path, request_serializer=bytes, response_deserializer=bytes)
    code, details, _ = refused(lambda: [*call(data, timeout=30)])
    assert code == INVALID and details["ErrorInfo"].reason == "invalid_message"
    assert client.stub.HealthCheck(pb.HealthCheckRequest()).healthy


def test_the_health_service_refuses_what_cannot_be_parsed_too(client: Client):
    call = client.channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=bytes)
    assert refused(lambda: call(b"\xff\xff\xff", timeout=30))[0] == INVALID
