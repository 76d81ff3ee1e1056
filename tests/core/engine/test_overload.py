"""The queue is bounded: a request beyond the bound is refused at once with a time to retry, and others go on."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from engine_parts import MakeEngine

from infeng_core import Request, SamplingParams
from infeng_core.errors import OverloadedError
from infeng_core.scheduling.cost import StepShape

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


def test_one_request_too_many_is_refused_and_the_others_are_served(make_engine: MakeEngine):
    engine = make_engine(scheduler__max_waiting=3, scheduler__max_running=1)
    expected = engine.generate([[5, 6]], GREEDY)[0].token_ids
    streams = [engine.submit([5, 6], GREEDY) for _ in range(3)]
    with pytest.raises(OverloadedError, match=r"3 requests wait already.*max_waiting.*try again in \d") as caught:
        engine.submit([5, 6], GREEDY)
    assert (caught.value.reason, caught.value.retry_after > 0) == ("requests", True)
    engine.step()
    streams.append(engine.submit([5, 6], GREEDY))  # one has started
    streams[1].cancel()
    streams.append(engine.submit([5, 6], GREEDY))
    found = [stream.result() for stream in streams]
    assert [one.token_ids for one in found] == [expected, (), *[expected] * 3]
    assert (engine._schedulers.backlog.requests, engine.scheduler.waiting, engine.scheduler.running) == (0, 0, 0)


def test_a_refusal_comes_before_the_prompt_is_tokenized(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch):
    engine = make_engine(scheduler__max_waiting_tokens=10)
    engine.submit([5] * 8, GREEDY)
    monkeypatch.setattr(engine.tokenizer, "encode", lambda *_: pytest.fail("it was tokenized"))
    with pytest.raises(OverloadedError, match="prompts of 8 tokens wait already") as caught:
        engine.submit("the quick brown fox " * 100, GREEDY)
    assert caught.value.reason == "tokens"


def test_a_request_with_a_too_long_predicted_wait_is_refused(make_engine: MakeEngine):
    engine = make_engine(scheduler__max_wait_ms=1000)
    for rows in (1, 8, 64, 512):
        for number in range(8):
            engine._schedulers.costs.observe(StepShape(rows, 1, number * rows), 0.1 + 0.002 * rows)
    streams = [engine.submit([5] * 100, GREEDY) for _ in range(2)]
    with pytest.raises(OverloadedError, match="it would wait") as caught:
        streams.extend(engine.submit([5] * 100, GREEDY) for _ in range(20))
    assert caught.value.reason == "wait"
    assert 2 < len(streams) < 10


def test_generate_is_not_refused_for_its_own_prompts(make_engine: MakeEngine):
    engine = make_engine(scheduler__max_waiting=2, scheduler__max_running=2)
    assert len(engine.generate([[5, 6]] * 9, replace(GREEDY, max_tokens=2))) == 9


def test_requests_that_never_start_are_counted_no_longer(make_engine: MakeEngine):
    engine = make_engine(scheduler__max_waiting=2, scheduler__max_running=1)
    engine.submit([5], GREEDY)
    for _ in range(5):
        stream = engine.submit(Request((5, 6), GREEDY, timeout=0.0))
        engine.step()
        assert stream.result().finish_reason == "timeout"
    for _ in range(5):
        engine.submit([5, 6], GREEDY)  # its stream has no reader
        engine.step()
    assert engine._schedulers.backlog.requests <= 1


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.nightly
def test_an_engine_survives_two_minutes_of_fourfold_overload(make_engine: MakeEngine):
    """Rejections are typed, what is accepted is answered, nothing is lost, memory stays flat."""
    target = 2.0
    engine = make_engine(scheduler__max_wait_ms=int(1000 * target / 2), scheduler__max_running=8)
    params = replace(GREEDY, max_tokens=32)
    begin = time.perf_counter()
    for _ in range(4):
        engine.generate([[5 + i] * 60 for i in range(16)], params)
    capacity = 64 / (time.perf_counter() - begin)  # requests a second
    engine.start()
    accepted, refused, sizes = [], 0, []
    begin = time.perf_counter()
    number = 0
    while (now := time.perf_counter()) - begin < 120:
        due = begin + number / (4 * capacity)
        if now < due:
            time.sleep(due - now)
        number += 1
        prompt = [5 + number % 40] * (20 + number % 80)
        try:
            accepted.append(engine.submit(prompt, params))
        except OverloadedError as error:
            assert error.retry_after > 0
            refused += 1
        if number % 500 == 0:
            sizes.append(rss_bytes())
    results = [stream.result() for stream in accepted]
    engine.stop()
    assert len(results) == len(accepted)
    assert all(len(one.token_ids) == 32 for one in results)
    assert refused > number / 2
    first = sorted(one.timings.first_token for one in results)
    assert first[int(0.99 * len(first))] < 5 * target, "far from what a queue without bounds would come to"
    answers = 40_000 * len(results)  # which this test keeps
    assert max(sizes) - sizes[len(sizes) // 4] < 32e6 + answers
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total
