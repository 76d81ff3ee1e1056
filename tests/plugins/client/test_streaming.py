"""Streams that break: wherever they do, what is received is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
from fake_openai import FakeModel

pytest.importorskip("infeng_client", reason="the client wheel is not installed")

from infeng_client import BrokenStreamError, ConnectionFailedError, OverloadedError, Retries, ServerError
from infeng_client.calls import Call, chat, completion, resumed
from infeng_client.results import Chunk, read_completion
from infeng_client.retries import STANDARD
from infeng_client.sending import Came, Give, Read, Reply, Send, Terms, Wait
from infeng_client.streaming import Streaming

REQUESTS = {
    "text": (False, {"prompt": "Sag: "}),
    "choices": (False, {"prompt": "Sag: ", "n": 3, "logprobs": 1}),
    "chat": (True, {"messages": [{"role": "user", "content": "Sag: "}], "n": 2, "logprobs": True, "reasoning": True}),
    "tools": (True, {"messages": [{"role": "user", "content": "Wetter?"}], "tools": [{}]}),
}
LOST = ConnectionFailedError("reset by peer")


def model_of(name: str) -> FakeModel:
    """Return a model that knows the request as its call c1."""
    is_chat, body = REQUESTS[name]
    model = FakeModel()
    model.calls["c1"] = is_chat, {**body, "stream_options": {"include_usage": True}}
    return model


@cache
def frames(name: str, seen: tuple[int, ...] = ()) -> tuple[bytes, ...]:
    """Return the frames of a request's stream, behind so many tokens of each choice."""
    return tuple(model_of(name).frames("c1", list(seen)))


class Broken:
    """A server whose streams break off after so many bytes, one number for each connection."""

    def __init__(self, name: str, cuts: Iterable[int] = ()) -> None:
        self.name = name
        self.cuts = list(cuts)
        self.sent: list[Call] = []
        self.waits: list[float] = []
        self.refuse: list[Came] = []
        self._parts: list[bytes] = []
        self._broken = False

    def perform(self, step: Any) -> Came:
        if isinstance(step, Wait):
            self.waits.append(step.seconds)
            return None
        if isinstance(step, Send):
            return self._send(step.call)
        assert isinstance(step, Read)
        if self._parts:
            return self._parts.pop(0)
        return LOST if self._broken else b""

    def _send(self, call: Call) -> Came:
        self.sent.append(call)
        refused = self.refuse.pop(0) if self.refuse else None
        if refused is not None:
            return refused
        mark = call.headers.get("last-event-id", "/").partition("/")[2]
        whole = b"".join(frames(self.name, tuple(map(int, filter(None, mark.split("."))))))
        length = self.cuts.pop(0) if self.cuts else len(whole)
        self._broken = length < len(whole)
        self._parts = [whole[: length // 2], whole[length // 2 : length]]
        self._parts = [part for part in self._parts if part]
        return Reply(200, {"x-request-id": "r1"}, b"")


def read(server: Broken, retries: Retries = STANDARD) -> tuple[Streaming, list[Chunk]]:
    """Read a stream to its end."""
    is_chat, body = REQUESTS[server.name]
    call = chat(body["messages"], body) if is_chat else completion(body["prompt"], body)
    streaming = Streaming(call, lambda: Terms(retries, None, clock=lambda: 0.0, draw=lambda: 0.0))
    return streaming, list(chunks(streaming, server.perform))


def chunks(streaming: Streaming, perform: Callable[[Any], Came]) -> Iterable[Chunk]:
    steps, came = streaming.steps(), None
    while True:
        try:
            step = steps.send(came)
        except StopIteration:
            return
        came = None
        if isinstance(step, Give):
            yield from step.chunks
        else:
            came = perform(step)


def text(received: Iterable[Chunk], index: int = 0) -> str:
    return "".join(chunk.text for chunk in received if chunk.index == index)


def ends(received: Iterable[Chunk]) -> list[int]:
    return sorted(chunk.index for chunk in received if chunk.finish_reason is not None)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_streamed_answer_equals_the_unstreamed_one(name: str):
    streaming, received = read(Broken(name))
    answer = read_completion(model_of(name).body("c1"))
    assert streaming.gathering.completion() == answer
    assert text(received) == answer.text
    assert [chunk.usage for chunk in received if chunk.usage] == [answer.usage]


@pytest.mark.parametrize("name", REQUESTS)
def test_a_stream_that_breaks_at_any_byte_resumes_exactly(name: str):
    unbroken = read(Broken(name))[0].gathering.completion()
    for cut in range(0, len(b"".join(frames(name))), 5 if name == "text" else 131):
        streaming, received = read(Broken(name, [cut, max(1, cut // 2)]))
        assert streaming.gathering.completion() == unbroken, cut
        assert [text(received, choice.index) for choice in unbroken.choices] == [c.text for c in unbroken.choices], cut
        assert ends(received) == list(range(len(unbroken.choices))), cut


def test_a_stream_resumes_after_the_last_complete_event():
    server = Broken("text", [len(b"".join(frames("text")[:3])) + 40])
    streaming, _ = read(server)
    post, again = server.sent
    assert (again.method, again.path) == ("GET", "/v1/streams/c1")
    assert again.headers == {"last-event-id": "c1/3"}
    assert post.headers["idempotency-key"]
    assert (streaming.resumes, server.waits) == (1, [])


@pytest.mark.parametrize(
    ("last", "path"),
    [
        ("c1/3", "c1"),
        ("c1/3.0.2-4-1/1/7", "c1"),
        ("a/b/3.2/1", "a%2Fb"),
        ("né ü/1", "n%C3%A9%20%C3%BC"),
        ("odd", "odd"),
    ],
)
def test_the_id_of_an_event_names_its_call(last: str, path: str):
    assert resumed(last) == Call("GET", f"/v1/streams/{path}", headers={"last-event-id": last})


def test_before_the_first_event_the_call_is_repeated_with_its_key():
    server = Broken("text", [0, 20])
    streaming, received = read(server)
    assert [call.method for call in server.sent] == ["POST"] * 3
    assert len({call.headers["idempotency-key"] for call in server.sent}) == 1
    assert text(received) == streaming.gathering.text()
    assert streaming.resumes == 0


def test_a_call_that_got_only_an_opening_without_an_id_is_repeated():
    opening = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
    rest = b'id: c1/1\ndata: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n'
    came = iter([Reply(200, {}, b""), opening, b"", None, Reply(200, {}, b""), opening + rest, b""])
    sent = []

    def perform(step: Any) -> Came:
        if isinstance(step, Send):
            sent.append(step.call.method)
        return next(came)

    streaming = Streaming(chat("x", {}), lambda: Terms(STANDARD, None, draw=lambda: 0.0))
    assert text(chunks(streaming, perform)) == "a"
    assert sent == ["POST", "POST"]


def test_a_restarting_server_is_waited_for():
    server = Broken("text", [300])
    server.refuse = [None, LOST, Reply(503, {"retry-after": "2"}, b""), LOST]
    streaming, received = read(server)
    assert server.waits == [0.5, 2.0, 2.0]
    assert text(received) == streaming.gathering.text()
    assert ends(received) == [0]


def test_a_stream_that_keeps_breaking_but_makes_progress_is_read_to_the_end():
    server = Broken("text", [len(max(frames("text"), key=len)) + 1] * 20)
    streaming, received = read(server, Retries(1))
    assert ends(received) == [0]
    assert streaming.resumes >= 9


@pytest.mark.parametrize(
    "refused",
    [[None, Reply(404, {}, b"")], [None, *[LOST] * 9], [None, Reply(409, {}, b"")], [None, Reply(500, {}, b"")]],
    ids=["forgotten", "gone", "changed", "failed"],
)
def test_a_stream_that_cannot_be_resumed_gives_the_text_so_far(refused: list[Came]):
    server = Broken("text", [len(b"".join(frames("text")[:4])) + 5])
    server.refuse = refused
    with pytest.raises(BrokenStreamError) as caught:
        read(server, Retries(2))
    assert caught.value.text == "Sag: Es wäre "
    assert caught.value.completion.finish_reason is None


def test_without_retries_a_broken_stream_is_not_resumed():
    server = Broken("text", [300])
    with pytest.raises(BrokenStreamError):
        read(server, Retries(0))
    assert len(server.sent) == 1


def test_an_answer_without_usage_or_end_marker_is_kept_if_it_cannot_be_resumed():
    for missing in (1, 2):
        server = Broken("text", [len(b"".join(frames("text")[:-missing]))])
        server.refuse = [None, Reply(404, {}, b"")]
        streaming, _ = read(server)
        assert streaming.gathering.completion().finish_reason == "stop"


@pytest.mark.parametrize("last", [b"data: [DONE]\n\n", b""])
def test_streams_without_ids_or_end_marker_are_read_too(last: bytes):
    parts = [b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}\n\n', last]
    replies = iter([Reply(200, {}, b""), *filter(None, parts), b""])
    streaming = Streaming(completion("x", {}), lambda: Terms(Retries(), None))
    assert text(chunks(streaming, lambda _: next(replies))) == "a"

    replies = iter([Reply(200, {}, b""), b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n', b""])
    streaming = Streaming(completion("x", {}), lambda: Terms(Retries(), None))
    with pytest.raises(BrokenStreamError):
        list(chunks(streaming, lambda _: next(replies)))


@pytest.mark.parametrize(("fields", "kind", "status"), [
    ('"type": "server_error", "code": null', ServerError, 500),
    ('"type": "overloaded_error"', OverloadedError, 503),
    ('"type": "x", "code": 429', OverloadedError, 429),
])  # fmt: skip
def test_an_error_in_the_stream_is_raised_after_the_chunks_before_it(fields: str, kind: type[Exception], status: int):
    data = b'data: {"choices": [{"index": 0, "text": "a"}]}\n\ndata: {"error": {"message": "ouch", %b}}\n\n'
    replies = iter([Reply(200, {"x-request-id": "r7"}, b""), data % fields.encode(), b""])
    streaming = Streaming(completion("x", {}), lambda: Terms(Retries(), None))
    received: list[Chunk] = []
    with pytest.raises(kind, match="ouch") as caught:
        for chunk in chunks(streaming, lambda _: next(replies)):
            received.append(chunk)  # noqa: PERF402 - what came before the error counts
    assert text(received) == "a"
    assert (caught.value.status, caught.value.request_id) == (status, "r7")  # type: ignore[attr-defined]
