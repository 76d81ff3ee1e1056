"""From a call to the engine and back: streams, whole answers, and what a client's leaving gives back."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from infeng_client import Client
from infeng_serve.observers import Record
from infeng_serve.routes.generation import route
from openai import OpenAI
from serve_parts import (
    Running,
    connected,
    holds_little,
    posted,
    read_tiny,
    read_until,
    running,
    slowed,
    stepping,
    until,
)

LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}


class Seen:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Record]] = []
        self.new: dict[str, int] = {}
        self.reasons: list[str] = []

    def accepted(self, record: Record) -> None:
        self.calls.append(("accepted", record))

    def tokens(self, record: Record, new: int, now: float) -> None:
        assert now >= record.last_token
        self.new[record.id] = self.new.get(record.id, 0) + new

    def ended(self, record: Record) -> None:
        self.calls.append(("ended", record))

    def rejected(self, record: Record, reason: str) -> None:
        self.calls.append(("rejected", record))
        self.reasons.append(reason)

    def of(self, id: str) -> list[tuple[str, Record]]:
        return [(name, record) for name, record in self.calls if record.id == id]


SEEN = Seen()


@pytest.fixture(scope="module")
def one_at_a_time() -> Iterator[Running]:
    """A server whose engine runs two requests at a time, in small steps."""
    overrides = {"scheduler.max_running": 2, "scheduler.max_batch_tokens": 32, "scheduler.max_waiting": 2}
    with running(overrides=overrides, watch=lambda model: [SEEN]) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("has_ids", [False, True])
def test_an_idle_stream_gets_comments_without_effect_on_readers_and_ids(tmp_path: Path, has_ids: bool):
    body = {"model": "model", "prompt": "Once upon a time", "max_tokens": 5, "temperature": 0, "stream": True}
    comment = b": keep-alive\n" if has_ids else b": keep-alive\n\n"
    with running(stream_keep_alive=0.02, journal=str(tmp_path) if has_ids else None) as served:
        quick = served.ask("/v1/completions", body)
        slow = b""
        with stepping(served.engine, 0.0) as steps:
            steps.allow(1)
            with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as response:
                for part in response.iter_bytes():
                    slow += part
                    if slow.count(comment) >= 5:
                        steps.allow(float("inf"))
        with slowed(served.engine, 0.06):
            client = OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
            chunks = list(client.completions.create(**body))
            own = Client(served.url).stream("Once upon a time", max_tokens=5, temperature=0)
            text = "".join(chunk.text for chunk in own)
        assert slow.count(comment) >= 5
        frames, kept = (data.replace(comment, b"").split(b"\n\n") for data in (quick.data, slow))
        pieces = texts_of(kept)
        assert (
            "".join(chunk.choices[0].text for chunk in chunks) == text == "".join(pieces) == "".join(texts_of(frames))
        )
        if has_ids:
            last = re.findall(rb"id: (\S+)", slow)[2].decode()
            rest = served.ask(f"/v1/streams/{response.headers['x-request-id']}", last_event_id=last)
            assert "".join(texts_of(rest.data.replace(comment, b"").split(b"\n\n"))) == "".join(pieces[3:])


def texts_of(frames: list[bytes]) -> list[str]:
    """Return the texts of a completion's frames."""
    datas = [frame.partition(b"data: ")[2] for frame in frames if b'"choices"' in frame]
    return [json.loads(data)["choices"][0]["text"] for data in datas]


def test_an_idle_stream_has_no_comments_if_they_are_switched_off(served: Running):
    with running(stream_keep_alive=0) as quiet, slowed(quiet.engine, 0.05):
        reply = quiet.ask("/tiny", {"prompt": "a", "max_tokens": 4, "stream": True})
        assert reply.data.startswith(b"data: ")
        assert b"keep-alive" not in reply.data


def test_a_stream_gives_the_text_that_a_whole_answer_gives(served: Running):
    body = {"prompt": "Once upon a time", "max_tokens": 24}
    whole = served.ask("/tiny", body)
    streamed = served.ask("/tiny", {**body, "stream": True})
    assert whole.status == streamed.status == 200
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.headers["cache-control"] == "no-cache"
    assert streamed.headers["x-accel-buffering"] == "no"
    events = streamed.events
    assert events[-1] == "[DONE]"
    assert "".join(event["text"] for event in events[1:-1]) == whole.json["texts"][0]
    assert len(whole.json["texts"][0]) > 20
    assert events[-2]["finish_reason"] == whole.json["finish_reasons"][0] == "length"


def test_choices_of_one_call_come_in_one_stream_and_each_ends_once(served: Running):
    body = {"prompt": "The lion", "max_tokens": 12, "n": 3, "temperature": 1.0}
    whole = served.ask("/tiny", body).json["texts"]
    events = served.ask("/tiny", {**body, "stream": True}).events[1:-1]
    texts = ["".join(event["text"] for event in events if event["choice"] == choice) for choice in range(3)]
    assert texts == whole
    assert sorted(event["choice"] for event in events if "finish_reason" in event) == [0, 1, 2]


def test_an_adapter_answers_calls_with_its_name_as_model(served: Running):
    body = {"prompt": "The king", "max_tokens": 24}
    texts = {name: served.ask("/tiny", {**body, "model": name}).json["texts"][0] for name in ("base", "bard", "coder")}
    assert len(set(texts.values())) == 3
    unknown = served.ask("/tiny", {**body, "model": "poet"})
    assert (unknown.status, unknown.json["error"]["code"], unknown.json["error"]["param"]) == (
        404,
        "model_not_found",
        "model",
    )


def test_an_error_of_the_engine_names_the_parameter(served: Running):
    reply = served.ask("/tiny", {"prompt": "x", "temperature": -1.0})
    assert (reply.status, reply.json["error"]["param"]) == (400, "temperature")
    reply = served.ask("/tiny", {"prompt": [5] * 100_000})
    assert (reply.status, reply.json["error"]["code"]) == (400, "context_length_exceeded")
    reply = served.ask("/tiny", {"prompt": [5], "max_tokens": "many"})
    assert reply.status == 400
    assert "max_tokens" in reply.json["error"]["message"]


def leave(served: Running, body: Any, is_there: Any) -> None:
    """Send a call, close its connection once it ``is_there``: two steps later all blocks are back.

    That is the one that runs, and at most one that begins before the engine is told. Steps are held until the server
    knows of the leave: how long the system takes to tell it says nothing.
    """
    with stepping(served.engine, 0.03) as steps:
        client = connected(served.address)
        client.sendall(posted("/tiny", body))
        assert until(is_there)
        steps.allow(0)
        client.close()
        assert until(lambda: not served.server.service.limits.calls)
        steps.allow(2)
        assert until(lambda: served.blocks_in_use() == 0 and served.engine.scheduler.waiting == 0)


@pytest.mark.slow
def test_a_client_that_leaves_its_stream_frees_its_blocks_within_a_step(one_at_a_time: Running):
    served = one_at_a_time
    leave(served, LONG, lambda: served.engine.scheduler.running and SEEN.new)


def test_a_client_that_leaves_while_its_prompt_is_computed_gives_its_blocks_back(one_at_a_time: Running):
    served = one_at_a_time
    for attempt in range(5):  # on a busy machine the prompt may be over before this thread looks
        SEEN.new.clear()
        prompt = [7 + (number + attempt) % 90 for number in range(900)]
        leave(served, {**LONG, "prompt": prompt, "max_tokens": 50}, lambda: served.blocks_in_use() > 2)
        if not SEEN.new:
            return
    pytest.fail("the prompt takes thirty steps, and a token came each time")


def test_a_client_that_leaves_a_whole_answer_frees_its_blocks(one_at_a_time: Running):
    served = one_at_a_time
    leave(served, {**LONG, "stream": False}, lambda: served.engine.scheduler.running)


def test_a_client_that_leaves_is_removed_from_the_queue(one_at_a_time: Running):
    served = one_at_a_time
    scheduler = served.engine.scheduler
    with stepping(served.engine, 0.02) as steps:
        running = [connected(served.address) for _ in range(2)]
        for client in running:
            client.sendall(posted("/tiny", LONG))
        assert until(lambda: scheduler.running == 2)
        waiting = connected(served.address)
        waiting.sendall(posted("/tiny", LONG))
        assert until(lambda: scheduler.waiting == 1)
        steps.allow(0)
        waiting.close()
        assert until(lambda: served.server.service.limits.calls == 2)
        steps.allow(2)
        assert until(lambda: scheduler.waiting == 0)
        steps.allow(float("inf"))
        assert scheduler.running == 2
        for client in running:
            client.close()
        assert until(lambda: served.blocks_in_use() == 0)


@contextmanager
def busy(served: Running, count: int) -> Iterator[None]:
    """Slow an engine down for ``count`` clients, whose calls run or wait; then they leave, and nothing is kept."""
    scheduler = served.engine.scheduler
    with slowed(served.engine, 0.02):
        clients = [connected(served.address) for _ in range(count)]
        for taken, client in enumerate(clients, 1):
            client.sendall(posted("/tiny", LONG))
            assert until(lambda taken=taken: scheduler.running + scheduler.waiting == taken)
        yield
        for client in clients:
            client.close()
        assert until(lambda: served.blocks_in_use() == 0 and not scheduler.waiting)


def test_too_many_that_wait_are_told_when_to_come_again(one_at_a_time: Running):
    served = one_at_a_time
    with busy(served, 4):
        reply = served.ask("/tiny", LONG, x_request_id="refused")
        assert reply.status == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert 0 < int(reply.headers["retry-after-ms"]) <= 1000 * int(reply.headers["retry-after"])
        assert reply.json["error"]["code"] == "overloaded"
    assert [name for name, _ in SEEN.of("refused")] == ["rejected"]
    assert SEEN.reasons[-1] == "overloaded"


def test_a_refused_call_is_answered_before_its_body_arrives_and_keeps_its_connection(one_at_a_time: Running):
    served = one_at_a_time
    with busy(served, 4):
        call = posted("/tiny", {**LONG, "prompt": "x" * 1000})
        refused = connected(served.address)
        refused.sendall(call[:-500])
        assert read_until(refused, b'"overloaded"').startswith(b"HTTP/1.1 503")
        refused.sendall(call[-500:] + b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"HTTP/1.1 200" in read_until(refused, b'"ok"}')
        refused.close()


def test_a_call_counts_as_waiting_while_it_is_read():
    is_read, reads = threading.Event(), []

    def slowly(body: bytes, context: Any) -> Any:
        reads.append(body)
        assert is_read.wait(20)
        return read_tiny(body, context)

    overrides = {"scheduler.max_running": 1, "scheduler.max_waiting": 2}
    with running(overrides=overrides, routes={"/slow": route(slowly)}) as served, busy(served, 2):
        slow = connected(served.address)
        slow.sendall(posted("/slow", LONG))
        assert until(lambda: len(reads) == 1)
        assert served.ask("/slow", LONG).status == 503
        assert len(reads) == 1
        is_read.set()
        assert until(lambda: served.engine.scheduler.waiting == 2)
        slow.close()


def test_observers_are_notified_of_each_choice_from_acceptance_to_end(one_at_a_time: Running):
    reply = one_at_a_time.ask("/tiny", {"prompt": "The lion", "max_tokens": 5, "n": 2}, x_request_id="told")
    assert reply.status == 200
    for id in ("told", "told-1"):
        (first, record), (last, same) = SEEN.of(id)
        assert (first, last) == ("accepted", "ended")
        assert record is same
        assert record.completion_tokens == SEEN.new[id] == 5
        assert (record.status, record.finish_reason, record.route) == (200, "length", "/tiny")
        times = [record.arrived, record.submitted, record.started, record.first_token, record.last_token, record.ended]
        assert times == sorted(times)
        assert record.prompt_tokens > 0
    assert until(lambda: not one_at_a_time.server.service.limits.calls)


def test_a_call_whose_client_left_is_reported_as_cancelled(one_at_a_time: Running):
    client = connected(one_at_a_time.address)
    with slowed(one_at_a_time.engine, 0.02):
        client.sendall(posted("/tiny", LONG, "x-request-id: left"))
        read_until(client, b'"text"')
        client.close()
        assert until(lambda: len(SEEN.of("left")) == 2)
    _, record = SEEN.of("left")[1]
    assert (record.finish_reason, record.status) == ("cancelled", 499)


def test_tokens_of_a_stalled_reader_are_merged_and_delay_no_call(served: Running):
    holds_little(served)
    body = {"prompt": "Once upon a time", "max_tokens": 150, "n": 16, "ignore_eos": True, "temperature": 1.0}
    whole = served.ask("/tiny", body).json["texts"]
    stalled = connected(served.address, receives=2048)
    stalled.sendall(posted("/tiny", {**body, "stream": True}))
    assert until(lambda: served.engine.scheduler.running)
    other = served.ask("/tiny", {"prompt": "The lion", "max_tokens": 8})
    assert other.status == 200
    assert until(lambda: not served.engine.scheduler.running), "the engine goes on without it"
    data = read_until(stalled, b"[DONE]").partition(b"\r\n\r\n")[2]
    frames = [json.loads(line[6:]) for line in unchunked(data).split(b"\n\n") if line.startswith(b"data: {")][1:]
    texts = ["".join(frame["text"] for frame in frames if frame["choice"] == choice) for choice in range(16)]
    assert texts == whole
    assert max(frame["of"] for frame in frames) > 1
    stalled.close()


def unchunked(data: bytes) -> bytes:
    """Return the body of chunked pieces."""
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        found, data = found + data[: int(size, 16)], data[int(size, 16) + 2 :]
        if int(size, 16) == 0:
            break
    return found


def test_no_call_is_left_when_all_have_ended(served: Running):
    assert until(lambda: not served.server.service.limits.calls)
    assert not served.server.service.bridge.queues
    assert until(lambda: served.blocks_in_use() == 0)


def test_the_requests_of_one_call_are_admitted_together():
    with running(overrides={"scheduler.max_running": 1, "scheduler.max_waiting": 2}) as served:
        reply = served.ask("/tiny", {"prompt": "The lion", "max_tokens": 2, "n": 8})
        assert (reply.status, len(reply.json["texts"])) == (200, 8)
