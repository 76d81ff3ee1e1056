"""What clients are told of errors of the engine, and what they are not."""

from __future__ import annotations

import json
import math

import pytest
from infeng_serve.protocol import errors

from infeng_core.api import (
    AdapterError,
    EndedError,
    InfengError,
    KernelError,
    ModelError,
    OverloadedError,
    PluginError,
    RequestError,
    ResourceError,
    SamplingParams,
    UsageError,
)


def overloaded(seconds: float) -> OverloadedError:
    return OverloadedError("17 requests wait", reason="requests", retry_after=seconds)


@pytest.mark.parametrize(
    ("seconds", "header", "milliseconds"),
    [(0.0, "1", "0"), (0.0004, "1", "1"), (1.0, "1", "1000"), (1.25, "2", "1250"), (math.inf, "60", "60000")],
)
def test_an_overloaded_server_says_when_to_retry(seconds, header, milliseconds):
    error = errors.of(overloaded(seconds))
    assert (error.status, error.type, error.code) == (503, "unavailable_error", "overloaded")
    assert error.headers == {"retry-after": header, "retry-after-ms": milliseconds}


@pytest.mark.parametrize(
    ("raised", "status", "param", "code"),
    [
        (RequestError("temperature", "-1 is out of range"), 400, "temperature", "invalid_value"),
        (RequestError("bad_words_ids", "a word has no token"), 400, "bad_words", "invalid_value"),
        (RequestError("grammar json_schema", "it is not JSON"), 400, "grammar", "invalid_value"),
        (RequestError("request", "its text cannot be made"), 400, None, "invalid_value"),
        (RequestError("17 adapters", "that many"), 400, None, "invalid_value"),
        (RequestError("prompt of 300 tokens", "the context is 256"), 400, "prompt", "context_length_exceeded"),
        (RequestError("adapter 'b0b'", "no adapter of that name is loaded"), 404, "model", "model_not_found"),
        (RequestError("adapter bard", "its weight is too large"), 400, "model", "invalid_value"),
        (EndedError("prompt", "it ended before all of it was computed"), 408, "timeout", "timeout"),
        (UsageError("engine", "it is closed"), 503, None, "shutting_down"),
        (UsageError("backend numpy", "it gives no hidden states"), 501, None, "unsupported"),
        (AdapterError("/srv/adapters/x", "its rank is 0"), 404, "model", "model_not_found"),
        (ResourceError("memory", "there is not enough"), 503, None, "unavailable"),
        (KernelError("avx2", "a kernel failed"), 500, None, "internal_error"),
        (ModelError("/srv/model.safetensors", "it is cut"), 500, None, "internal_error"),
        (PluginError("scheduler", "it stands"), 500, None, "internal_error"),
        (InfengError("x", "y"), 500, None, "internal_error"),
    ],
)
def test_an_error_of_the_engine_has_a_status_and_names_the_parameter(raised, status, param, code):
    error = errors.of(raised)
    assert (error.status, error.param, error.code) == (status, param, code)
    told = json.loads(error.body())["error"]
    assert told == {"message": error.message, "type": error.type, "param": param, "code": code}
    if status in (404, 500, 503):
        assert raised.what not in error.message or raised.what == "x"
        assert "/srv" not in error.message


def test_errors_name_parameters_by_the_clients_names():
    with pytest.raises(RequestError) as caught:
        SamplingParams(top_p=2)
    assert errors.of(caught.value).param == "top_p"
    assert errors.of(caught.value, "options.top_p").param == "options.top_p"
