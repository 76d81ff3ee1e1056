"""Clients that leave, calls that are aborted, and a server that is full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from infeng_serve.auth import NOBODY, Caller
from infeng_serve.event_queue import EventQueue
from infeng_serve.protocol.errors import ApiError
from infeng_serve.rpc.running import Running as Runs
from rpc_parts import Client, Seen, asked, refused
from serve_parts import Running, slowed, stepping, until
from smg_grpc_proto import vllm_engine_pb2 as pb

ROUTE = "/vllm.grpc.engine.VllmEngine/Generate"


def long(**more: Any) -> Any:
    return asked(**{"max_tokens": 400, "ignore_eos": True, "stream": True, **more})


def leave(served: Running, request: Any, is_there: Callable[[Any], object], end: Callable[[Any, Any], object]) -> None:
    """Call, end the call once it ``is_there``: two steps later all blocks are back."""
    with stepping(served.engine, 0.03) as steps, Client(served) as client:
        call = client.generate(request)
        assert until(lambda: is_there(call))
        steps.allow(0)
        end(client, call)
        assert until(lambda: not served.server.service.limits.calls)  # the server knows of it
        steps.allow(2)  # the one that runs, and at most one that begins before the engine is told
        assert until(lambda: served.blocks_in_use() == 0 and served.engine.scheduler.waiting == 0)


def cancel(_: Client, call: Any) -> None:
    call.cancel()


def close(client: Client, _: Any) -> None:
    client.channel.close()


@pytest.mark.parametrize("end", [cancel, close])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_gives_its_blocks_back_within_a_step(served: Running, seen: Seen, stream: bool, end: Any):
    seen.new = 0
    leave(served, long(stream=stream), lambda _: seen.new, end)


def test_a_client_that_leaves_while_its_prompt_is_computed_gives_its_blocks_back(served: Running, seen: Seen):
    for attempt in range(5):  # on a busy machine the prompt may be over before this thread looks
        seen.new = 0
        request = long(max_tokens=50)
        request.tokenized.input_ids.extend(7 + (number + attempt) % 90 for number in range(900))
        leave(served, request, lambda _: served.blocks_in_use() > 2, cancel)
        if not seen.new:
            return
    pytest.fail("the prompt takes thirty steps, and a token came each time")


def test_a_deadline_ends_a_call_as_leaving_does(served: Running, seen: Seen):
    with slowed(served.engine, 0.02), Client(served) as client:
        call = client.stub.Generate(long(id="hurried"), timeout=0.6)
        code, _, _ = refused(lambda: list(call))
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert until(lambda: served.blocks_in_use() == 0)
    assert until(lambda: seen.kinds("hurried") == ["accepted", "ended"])
    assert seen.records["hurried"][-1][1].status == 499


def test_an_aborted_call_ends_with_its_tokens_so_far(served: Running, seen: Seen):
    with slowed(served.engine, 0.02), Client(served) as client:
        call = client.generate(long(id="mine", n=2))
        first = next(call)
        client.stub.Abort(pb.AbortRequest(request_ids=["mine", "nobody's"]))
        messages = [first, *call]
    completes = [one.complete for one in messages if one.HasField("complete")]
    assert [one.finish_reason for one in completes] == ["abort", "abort"]
    assert 0 < len(completes[0].output_ids) < 400
    chunks = [one.chunk for one in messages if one.HasField("chunk") and one.chunk.index == completes[0].index]
    assert [token for one in chunks for token in one.token_ids] == list(completes[0].output_ids)
    assert until(lambda: served.blocks_in_use() == 0)


def test_too_many_that_wait_are_told_when_to_come_again(served: Running, seen: Seen):
    scheduler = served.engine.scheduler
    with slowed(served.engine, 0.02), Client(served) as client:
        calls = []
        for count in range(1, 7):
            calls.append(client.generate(long()))
            assert until(lambda count=count: scheduler.running + scheduler.waiting == count)
        code, details, error = refused(lambda: client.complete(asked(id="refused")))
        assert code == grpc.StatusCode.UNAVAILABLE
        assert details["ErrorInfo"].reason == "overloaded"
        wait = int(dict(error.trailing_metadata())["retry-after-ms"])
        assert 0 < wait == details["RetryInfo"].retry_delay.ToMilliseconds()
        for call in calls:
            call.cancel()
        assert until(lambda: served.blocks_in_use() == 0 and not scheduler.waiting)
    assert seen.kinds("refused") == ["overloaded"]


def test_observers_are_notified_of_each_choice_as_with_http(served: Running, seen: Seen):
    with Client(served) as client:
        call = client.generate(asked(id="told", n=2, max_tokens=5), model="bard")
        assert dict(call.initial_metadata())["x-request-id"] == "told"
        assert len(list(call)) == 2
    for id in ("told", "told-1"):
        (first, record), (last, same) = seen.records[id]
        assert (first, last) == ("accepted", "ended")
        assert record is same
        assert (record.status, record.finish_reason, record.route) == (200, "length", ROUTE)
        assert (record.model, record.adapter, record.client) == ("bard", "bard", "127.0.0.1")
        assert (record.completion_tokens, record.max_tokens) == (5, 5)
        times = [record.arrived, record.submitted, record.started, record.first_token, record.last_token, record.ended]
        assert times == sorted(times)


def test_no_call_is_left_after_all_have_ended(served: Running, seen: Seen):
    assert until(lambda: not served.server.service.limits.calls)
    assert not served.server.service.bridge.queues


def test_a_call_that_is_aborted_before_it_is_submitted_is_not_submitted():
    async def work() -> None:
        running, queue, call = Runs(), EventQueue("one", ()), SimpleNamespace(caller=NOBODY)
        with running.one(call, "one", queue):
            running.abort(Caller("another"), ["one"])
            assert not queue.is_left
            running.abort(NOBODY, ["one"])
        assert queue.is_left
        with pytest.raises(ApiError, match="aborted"):
            await queue.take()
        running.abort(NOBODY, ["one"])  # it is over: nothing is kept

    asyncio.run(work())
