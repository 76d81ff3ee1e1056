"""Both clients against a real socket."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from typing import Any

import pytest
from fake_openai import PIECES, FakeServer, Refusal

pytest.importorskip("infeng_client", reason="the client wheel is not installed")

import httpx
from infeng_client import (
    ApiError,
    AsyncClient,
    BadRequestError,
    BrokenStreamError,
    Client,
    Completion,
    ConnectionFailedError,
    NotFoundError,
    OverloadedError,
    Retries,
    ServerError,
    TimedOutError,
    UnauthorizedError,
)

QUICK = Retries(4, first=0.01, cap=0.02)
ANSWER = "".join(PIECES)


class Face:
    """One of the clients, called as if it blocked."""

    def __init__(self, make: Callable[[], Client | AsyncClient], runner: asyncio.Runner | None) -> None:
        self._runner = runner
        self.client: Any = runner.run(_made(make)) if runner else make()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = getattr(self.client, name)(*args, **kwargs)
            if self._runner is None:
                if name in ("stream", "stream_chat"):
                    with result as stream:
                        return [chunk.text for chunk in stream], stream
                return list(result) if name.endswith("_many") else result
            if name in ("stream", "stream_chat"):
                return self._runner.run(_streamed(result))
            return self._runner.run(_listed(result) if name.endswith("_many") else result)

        return call


async def _made(make: Callable[[], Any]) -> Any:
    return make()


async def _streamed(stream: Any) -> tuple[list[str], Any]:
    async with stream:
        return [chunk.text async for chunk in stream], stream


async def _listed(results: Any) -> list[Any]:
    return [result async for result in results]


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Face]]:
    """Return what makes a client of either kind."""
    with asyncio.Runner() as runner:
        made: list[Face] = []

        def connect(url: str, key: str | None = None, **kwargs: Any) -> Face:
            face = Face(
                lambda: request.param(url, key, **{"retries": QUICK, "timeout": 20.0, **kwargs}),
                runner if request.param is AsyncClient else None,
            )
            made.append(face)
            return face

        yield connect
        for face in made:
            face.close()


def test_both_clients_have_the_same_methods():
    def methods(kind: type) -> dict[str, list[str]]:
        return {name: list(inspect.signature(method).parameters)
                for name, method in vars(kind).items() if not name.startswith("_") and callable(method)}  # fmt: skip

    assert methods(Client) == methods(AsyncClient)
    assert {"complete", "stream", "chat", "stream_chat", "models", "load_adapter", "unload_adapter", "tokenize",
            "detokenize", "embed", "health", "complete_many", "chat_many"} <= methods(Client).keys()  # fmt: skip


def test_every_route_can_be_called(server: FakeServer, connect: Callable[..., Face]):
    client = connect(server.url + "/v1/", "secret")
    answer = client.complete("Sag: ", max_tokens=4, model="poet", logprobs=1)
    assert (answer.text, answer.finish_reason, answer.usage.cached_tokens) == (f"Sag: {ANSWER}", "stop", 2)
    assert [each.logprob for each in answer.logprobs[:2]] == [0.0, -0.5]
    assert answer.logprobs[0].top == (("x", -9.0),)
    assert server.seen[0].headers["authorization"] == "Bearer secret"
    assert server.seen[0].body == {"prompt": "Sag: ", "max_tokens": 4, "model": "poet", "logprobs": 1}

    assert client.chat("Sag: ", reasoning=True).reasoning == "Hmm."
    calls = client.chat([{"role": "user", "content": "Wetter?"}], tools=[{}]).tool_calls
    assert [(call.name, call.arguments) for call in calls] == [
        ("weather", '{"city": "Zürich", "days": [1, 2]}'),
        ("traffic", '{"city": "Zürich", "days": [1, 2]}'),
    ]
    client.load_adapter("poet", "/adapters/poet")
    assert [(model.id, model.parent) for model in client.models()] == [("base", None), ("poet", "base")]
    client.unload_adapter("poet")
    assert [model.id for model in client.models()] == ["base"]
    assert client.detokenize(client.tokenize("né 🦙")) == "né 🦙"
    assert client.embed(["a", "bcd"]).vectors == ((1.0, 0.5), (3.0, 0.5))
    assert client.embed("ab").vectors == ((2.0, 0.5),)
    assert client.health().ok


def test_a_stream_yields_chunks_and_is_complete_at_its_end(server: FakeServer, connect: Callable[..., Face]):
    client = connect(server.url)
    for kind in ("stream", "stream_chat"):
        texts, stream = getattr(client, kind)("Sag: ", logprobs=True)
        assert len(texts) > len(PIECES)
        assert "".join(texts) == stream.text == stream.completion().text == f"Sag: {ANSWER}"
        assert stream.completion().usage.prompt_tokens == 3
        assert stream.resumes == 0
    assert client.complete("x", logprobs=1).logprobs == client.stream("x", logprobs=1)[1].completion().logprobs


def test_connections_are_reused_after_a_stream(server: FakeServer):
    with Client(server.url) as client:
        ports = set()
        for _ in range(3):
            with client.stream("x") as stream:
                response = stream._exchange._response
                assert response is not None
                ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))
                stream.finish()
    assert len(ports) == 1


def test_a_stream_resumes_even_within_a_character(server: FakeServer, connect: Callable[..., Face]):
    client = connect(server.url)
    client.stream("é🦙")
    whole = b"".join(server.model.frames("call0"))
    inside = [place for place, byte in enumerate(whole) if byte & 0xC0 == 0x80]  # within characters of several bytes
    assert len(inside) > 10
    for cut in [*inside[::5], 0, 1, len(whole) // 2, len(whole) - 1]:
        server.cuts.extend([cut, 333])
        texts, stream = client.stream("é🦙")
        assert "".join(texts) == f"é🦙{ANSWER}", cut
        assert stream.completion().finish_reason == "stop"
    assert any(path.startswith("/v1/streams/call") for path in server.paths())


def test_a_stream_unknown_to_the_server_is_an_error_with_the_text_so_far(
    server: FakeServer, connect: Callable[..., Face]
):
    client = connect(server.url)
    server.cuts.append(500)
    server.forgets = True
    with pytest.raises(BrokenStreamError, match="does not know it") as caught:
        client.stream("Sag: ")
    assert 0 < len(caught.value.text) < len(f"Sag: {ANSWER}")
    assert f"Sag: {ANSWER}".startswith(caught.value.text)


def test_refused_and_dropped_calls_are_repeated_under_one_key(server: FakeServer, connect: Callable[..., Face]):
    client = connect(server.url)
    server.drops = 1
    server.refusals.extend([Refusal(429, {"retry-after-ms": "1"}), Refusal(503)])
    assert client.complete("Sag: ").text == f"Sag: {ANSWER}"
    keys = [seen.headers["idempotency-key"] for seen in server.seen]
    assert (len(keys), len(set(keys))) == (4, 1)
    client.complete("Sag: ")
    assert server.seen[-1].headers["idempotency-key"] not in keys


ERROR = {"error": {"message": "top_p: too large", "type": "invalid_request_error", "param": "top_p", "code": "range"}}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, BadRequestError), (422, BadRequestError), (401, UnauthorizedError), (403, UnauthorizedError),
     (404, NotFoundError), (429, OverloadedError), (503, OverloadedError), (500, ServerError)],
)  # fmt: skip
def test_each_status_has_its_error(server: FakeServer, connect: Callable[..., Face], status: int, kind: type):
    client = connect(server.url, retries=0)
    for call in (client.complete, client.stream):
        server.refusals.append(Refusal(status, {"retry-after": "9"}, ERROR))
        with pytest.raises(kind, match="top_p: too large") as caught:
            call("x")
        error = caught.value
        assert isinstance(error, ApiError)
        assert (error.status, error.type, error.param, error.code) == (status, *list(ERROR["error"].values())[1:])
        assert error.request_id == f"req-{len(server.seen)}"
        if isinstance(error, OverloadedError):
            assert error.retry_after == 9.0


def test_a_malformed_answer_is_a_server_error(server: FakeServer, connect: Callable[..., Face]):
    client = connect(server.url)
    for body in ([1], {"choices": 1}, {"choices": [1]}):
        server.refusals.append(Refusal(200, {}, body))
        with pytest.raises(ServerError, match="answer"):
            client.complete("x")


def test_a_loading_server_is_not_ok_and_an_unreachable_one_is_an_error(
    server: FakeServer, connect: Callable[..., Face]
):
    server.refusals.append(Refusal(503, {}, {"error": {"code": 503, "message": "Loading model"}}))
    health = connect(server.url).health()
    assert (health.ok, health.status, len(server.seen)) == (False, "Loading model", 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectionFailedError, match=f"http://127.0.0.1:{port}: "):
        connect(f"http://127.0.0.1:{port}").complete("x")


def test_a_timeout_ends_a_call_and_a_stream(server: FakeServer, connect: Callable[..., Face]):
    server.delay = 0.2
    client = connect(server.url)
    for call in (client.complete, client.stream):
        begin = time.monotonic()
        with pytest.raises(TimedOutError):
            call("x", timeout=0.1)
        assert time.monotonic() - begin < 2


def test_an_invalid_address_is_refused_at_once(connect: Callable[..., Face]):
    for url in ("localhost:8000", "ftp://x", "http://", ""):
        with pytest.raises(ValueError, match="not an address of a server"):
            connect(url)


def test_a_given_httpx_client_is_used_and_left_open(server: FakeServer):
    with httpx.Client(headers={"x-mine": "1"}) as http:
        with Client(server.url, http=http) as client:
            client.health()
        assert not http.is_closed
    assert server.seen[0].headers["x-mine"] == "1"


@pytest.mark.parametrize(("kind", "count"), [("complete_many", 60), ("chat_many", 40)])
def test_many_prompts_are_answered_in_order_with_bounded_concurrency(
    server: FakeServer, connect: Callable[..., Face], kind: str, count: int
):
    server.delay = 0.0005
    prompts = [f"{place}: " for place in range(count)]
    answers = getattr(connect(server.url), kind)(prompts, concurrency=8, max_tokens=3)
    assert [answer.text for answer in answers] == [prompt + ANSWER for prompt in prompts]
    assert 2 <= server.most <= 8
    assert {seen.body["max_tokens"] for seen in server.seen} == {3}


def test_an_error_of_one_call_does_not_affect_the_others(server: FakeServer, connect: Callable[..., Face]):
    server.refusals.extend([Refusal(400, {}, ERROR)] * 2)
    server.cuts.extend([200, 400])
    results = connect(server.url).complete_many(map(str, range(20)), concurrency=4)
    wrong = [result for result in results if isinstance(result, BadRequestError)]
    right = {place: result.text for place, result in enumerate(results) if isinstance(result, Completion)}
    assert (len(wrong), len(right)) == (2, 18)
    assert all(text == f"{place}{ANSWER}" for place, text in right.items())


@pytest.mark.slow
def test_leaving_the_loop_cancels_running_calls_and_starts_no_more(server: FakeServer):
    server.delay = 0.05
    with Client(server.url) as client, closing(client.complete_many(map(str, range(1000)), 4)) as results:
        assert isinstance(next(iter(results)), Completion)
    assert server.abandoned.wait(2)
    assert len(server.seen) <= 12

    async def leave() -> None:
        async with AsyncClient(server.url) as client, aclosing(client.complete_many(map(str, range(1000)), 4)) as all_:
            assert isinstance(await anext(all_), Completion)

    server.abandoned.clear()
    asyncio.run(leave())
    assert server.abandoned.wait(2)
    assert len(server.seen) <= 24


def test_a_stream_is_cancelled_from_another_thread_while_it_waits(server: FakeServer):
    server.pauses.extend([0, 10])  # before the first frame, without which the stream does not begin, and the second
    with Client(server.url) as client, client.stream("x") as stream:
        threading.Timer(0.05, stream.cancel).start()
        begin = time.monotonic()
        list(stream)
        assert time.monotonic() - begin < 8
        assert stream.completion().finish_reason is None
    assert not any(path.startswith("/v1/streams") for path in server.paths())


def test_a_task_that_is_cancelled_leaves_the_server(server: FakeServer):
    server.delay = 0.05

    async def cancelled() -> None:
        async with AsyncClient(server.url) as client:
            task = asyncio.create_task(client.stream("x").finish())
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    assert server.abandoned.wait(2)


def test_a_concurrency_of_0_is_refused(server: FakeServer):
    with Client(server.url) as client:
        assert list(client.complete_many([])) == []
        with pytest.raises(ValueError, match="concurrency 0"):
            client.complete_many(["x"], 0)
