"""SMG, a gateway with templates and a tokenizer of its own, in front of the gRPC service: the answers of HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("infeng_serve", reason="the server wheel is not installed")
pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")
pytest.importorskip("smg_grpc_proto", reason="infeng-serve[grpc] is not installed")

import httpx

if TYPE_CHECKING:
    from openai import OpenAI  # more than a second of import, with every collection of tests

pytestmark = pytest.mark.nightly

GREEDY: dict[str, Any] = {"model": "demo", "max_tokens": 24, "temperature": 0}


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has now."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="module")
def gateway(
    served: Any, python_with: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenAI]:
    """A client of a gateway that knows nothing but where gRPC is served."""
    from openai import OpenAI

    program = python_with("smg", "smg>=1.13,<2").with_name("smg")
    path = tmp_path_factory.mktemp("gateway") / "log"
    port, metrics = free_ports(2)
    command = [program, "launch", "--worker-urls", f"grpc://{served.grpc}", "--host", "127.0.0.1", "--port", port]
    with path.open("w") as log:
        process = subprocess.Popen([*map(str, command), "--prometheus-port", str(metrics)], stdout=log, stderr=log)
    try:
        place, end = f"http://127.0.0.1:{port}/v1", time.monotonic() + 60
        while not listed(place):
            assert process.poll() is None and time.monotonic() < end, path.read_text()
            time.sleep(0.1)
        yield OpenAI(base_url=place, api_key="none", max_retries=0)
    finally:
        process.kill()
        process.wait()


def listed(place: str) -> list[Any]:
    """Return the models that a gateway knows."""
    with contextlib.suppress(httpx.HTTPError, ValueError):
        return list(httpx.get(f"{place}/models", timeout=5).json().get("data") or ())
    return []


def answer(served: Any, **prompt: Any) -> str:
    """Return what the server itself answers to a prompt as the gateway tokenizes it: without a first token."""
    ids = served.post("/tokenize", **prompt)["tokens"]
    first = served.post("/tokenize", prompt="")["tokens"]
    found = served.post("/v1/completions", **{**GREEDY, "prompt": ids[len(first) :]})
    return str(found["choices"][0]["text"])


def test_the_gateway_finds_the_model_and_gives_the_same_answers_as_http(served: Any, gateway: OpenAI):
    messages: Any = [{"role": "user", "content": served.prompt}]
    assert [model.id for model in gateway.models.list()] == [served.model]
    text = gateway.completions.create(prompt=served.prompt, **GREEDY).choices[0].text
    assert text == answer(served, prompt=served.prompt)
    chat: Any = gateway.chat.completions.create(messages=messages, **GREEDY)
    assert chat.choices[0].message.content == answer(served, messages=messages)
    assert (chat.choices[0].finish_reason, chat.usage.completion_tokens) == ("length", 24)
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, **GREEDY}
    for _ in range(5):  # how many tokens a piece has depends on what else the machine does
        streamed: Any = list(gateway.chat.completions.create(messages=messages, **more))
        if len(streamed) > 2:
            break
    pieces = [chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices]
    assert "".join(pieces) == chat.choices[0].message.content
    assert len(streamed) > 2
    assert streamed[-1].usage.completion_tokens == 24


def test_the_gateway_passes_on_constraints_log_probabilities_and_choices(served: Any, gateway: OpenAI):
    messages: Any = [{"role": "user", "content": served.prompt}]
    age = {"type": "object", "properties": {"age": {"enum": [3, 4]}}, "required": ["age"]}
    schema = {"type": "json_schema", "json_schema": {"name": "age", "schema": {**age, "additionalProperties": False}}}
    more: dict[str, Any] = {**GREEDY, "max_tokens": 60, "response_format": schema}
    made: Any = gateway.chat.completions.create(messages=messages, **more)
    assert json.loads(made.choices[0].message.content)["age"] in (3, 4)
    more = {**GREEDY, "temperature": 1, "seed": 5, "max_tokens": 8, "n": 3, "logprobs": True, "top_logprobs": 2}
    several: Any = gateway.chat.completions.create(messages=messages, **more)
    assert len({choice.message.content for choice in several.choices}) == 3
    for choice in several.choices:
        assert len(choice.logprobs.content) == 8
        assert all(one.logprob <= 0 and len(one.top_logprobs) == 2 for one in choice.logprobs.content)
