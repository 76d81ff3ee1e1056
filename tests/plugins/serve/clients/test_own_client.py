"""The project's own client, and the command line, through a real server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("infeng_client", reason="the client wheel is not installed")
pytest.importorskip("infeng_serve", reason="the server wheel is not installed")
pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

from infeng_client import AsyncClient, BadRequestError, Client, Completion, NotFoundError, Retries
from infeng_demo import adapter_dir

from infeng_core.cli import main

pytestmark = pytest.mark.slow

GREEDY = {"max_tokens": 24, "temperature": 0}


def test_the_client_gets_the_same_answers_as_plain_http(served: Any):
    with Client(served.url) as client:
        assert client.health().ok
        answer = client.complete(served.prompt, **GREEDY, logprobs=2)
        assert answer.text == served.complete()
        assert "".join(each.token for each in answer.logprobs or ()) == answer.text
        for _ in range(5):  # on a busy machine a chunk may hold all tokens
            with client.stream(served.prompt, **GREEDY, logprobs=2) as stream:
                texts = [chunk.text for chunk in stream]
            if len(texts) > 2:
                break
        assert len(texts) > 2
        assert "".join(texts) == answer.text
        gathered = stream.completion()
        assert gathered.usage is not None
        assert (gathered.choices, gathered.model) == (answer.choices, answer.model)
        assert gathered.usage.completion_tokens == 24
        assert client.chat(served.prompt, **GREEDY).text == served.chat()
        with client.stream_chat(served.prompt, **GREEDY) as stream:
            assert stream.finish().text == served.chat()
        assert client.detokenize(client.tokenize(served.prompt, add_special_tokens=False)) == served.prompt
        ids = client.tokenize(served.prompt)
        assert client.complete(ids, **GREEDY).text == answer.text
        drawn = client.complete(served.prompt, max_tokens=8, n=3, seed=5)
        with client.stream(served.prompt, max_tokens=8, n=3, seed=5) as stream:
            assert stream.finish().choices == drawn.choices


def test_adapters_are_loaded_listed_and_unloaded(served: Any):
    with Client(served.url) as client:
        assert client.complete(served.prompt, model="bard", **GREEDY).text == served.complete("bard")
        client.load_adapter("coder", str(adapter_dir("python")))
        try:
            assert [(model.id, model.parent) for model in client.models()] == [
                ("demo", None), ("bard", "demo"), ("coder", "demo")]  # fmt: skip
            assert client.complete("# Add", model="coder", **GREEDY).text
        finally:
            client.unload_adapter("coder")
        with pytest.raises(NotFoundError) as caught:
            client.complete("# Add", model="coder")
        assert caught.value.param == "model"
        with pytest.raises(BadRequestError, match="temperature") as refused:
            client.complete("x", temperature=-1)
        assert (refused.value.param, bool(refused.value.request_id)) == ("temperature", True)


def test_many_prompts_get_the_same_answers_as_single_ones(served: Any):
    prompts = [f"Question: What is {number} times 8?\nAnswer:" for number in range(24)]

    async def all_at_once() -> list[str]:
        async with AsyncClient(served.url) as client:
            results = client.complete_many(prompts, 8, max_tokens=8, temperature=0)
            return [result.text async for result in results if isinstance(result, Completion)]

    with Client(served.url) as client:
        alone = [client.complete(prompt, max_tokens=8, temperature=0).text for prompt in prompts]
        together = client.complete_many(prompts, 8, max_tokens=8, temperature=0)
        assert [result.text for result in together if isinstance(result, Completion)] == alone
    assert asyncio.run(all_at_once()) == alone


def test_a_closed_stream_is_cancelled_at_the_server(served: Any):
    with Client(served.url) as client:
        with client.stream("Once upon a time", max_tokens=1000, ignore_eos=True) as stream:
            next(stream)
        end = time.monotonic() + 5
        while served.get("/load")["running"] and time.monotonic() < end:
            time.sleep(0.02)
        assert served.get("/load")["running"] == 0


def test_a_stream_survives_a_killed_server(serve: Any, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ("--port", port, "--journal", tmp_path / "journal")
    asked = {"max_tokens": 700, "temperature": 1.0, "ignore_eos": True}
    with contextlib.ExitStack() as stack:
        url, process = stack.enter_context(serve(*options))
        client = stack.enter_context(Client(url, retries=Retries(400, first=0.2, cap=0.2)))
        alone = client.complete("Once upon a time", seed=11, **asked).text
        texts = []
        with client.stream("Once upon a time", seed=11, **asked) as stream:
            for chunk in stream:
                texts.append(chunk.text)
                if len(texts) == 5:
                    process.kill()
                    process.wait()
                    stack.enter_context(serve(*options))
        assert stream.resumes >= 1
        assert "".join(texts) == alone


def test_infeng_run_with_server_prints_the_servers_answer(served: Any, capsysbinary: pytest.CaptureFixture[bytes]):
    greedy = ["-n", "24", "--temperature", "0"]
    assert main(["run", "--server", served.url, "-p", served.prompt, *greedy]) == 0
    assert capsysbinary.readouterr().out.decode() == served.complete()
    assert main(["run", "--server", served.url, "--lora", "bard", "-p", served.prompt, *greedy]) == 0
    assert capsysbinary.readouterr().out.decode() == served.complete("bard")
    assert main(["ask", served.url, "-p", served.prompt, *greedy]) == 0
    assert capsysbinary.readouterr().out.decode() == served.chat()
