"""Admission: bounds in requests, tokens and seconds, and the time to retry."""

from __future__ import annotations

import pytest

from infeng_core.errors import OverloadedError
from infeng_core.scheduling.admission import Backlog, Bounds
from infeng_core.scheduling.cost import CostModel

COSTS = CostModel({**dict.fromkeys(CostModel().names, 0.0), "fixed": 0.05, "rows_from_0": 0.001, "rows_from_1": 0.001,
                   "rows_from_4": 0.001, "rows_from_16": 0.001, "rows_from_64": 0.001})  # fmt: skip


def backlog(**bounds) -> Backlog:
    return Backlog(Bounds(**bounds), COSTS, chunk=100)


def test_without_bounds_every_request_may_wait():
    made = backlog()
    for id_ in range(10_000):
        made.check(1 << 20)
        made.enter(id_, 1 << 20)
    assert (made.requests, made.tokens) == (10_000, 10_000 << 20)


def test_one_request_too_many_is_refused_until_another_starts():
    made = backlog(requests=2)
    for id_ in (0, 1):
        made.check(100)
        made.enter(id_, 100)
    with pytest.raises(OverloadedError, match=r"2 requests wait already.*max_waiting.*try again in \d") as caught:
        made.check(100)
    assert caught.value.reason == "requests"
    assert caught.value.retry_after == pytest.approx(0.15, rel=0.01), "one of two prompts of 150 ms"
    made.leave(0, 1.0, started=True)
    made.check(100)


def test_requests_that_are_coming_count_as_soon_as_any_waits():
    made = backlog(requests=3)
    made.check(100, coming=5)
    made.enter(0, 100)
    made.check(100, coming=1)
    with pytest.raises(OverloadedError, match="3 requests wait already"):
        made.check(100, coming=2)


def test_tokens_are_bounded_but_for_one_alone():
    made = backlog(tokens=300)
    made.check(1000)
    made.enter(0, 200)
    made.check(100)
    with pytest.raises(OverloadedError, match="prompts of 200 tokens wait already") as caught:
        made.check(200)
    assert caught.value.reason == "tokens"
    assert caught.value.retry_after == pytest.approx(0.15, rel=0.01)
    made.leave(0, 1.0)
    made.leave(0, 1.0)
    assert made.tokens == 0


def test_a_request_with_a_too_long_predicted_wait_is_refused_at_once():
    made = backlog(seconds=0.5)
    made.check(4000)  # alone: its own prompt is no wait
    made.enter(0, 300)
    made.check(4000)
    made.enter(1, 100)
    with pytest.raises(OverloadedError, match=r"it would wait 0\.6 s for others") as caught:
        made.check(1)
    assert caught.value.reason == "wait"
    assert caught.value.retry_after == pytest.approx(0.1, rel=0.01)


def test_the_wait_follows_the_rate_at_which_others_have_started():
    made = backlog()
    for id_ in range(20):
        made.enter(id_, 100)
    for id_ in range(10):
        made.leave(id_, 2.0 * id_, started=True)  # 50 tokens a second: they wait for others to end
    assert made.seconds() == pytest.approx(1000 / 50)
    for id_ in range(10, 20):
        made.leave(id_, 20.0)
    made.enter(99, 100)
    assert made.seconds() == pytest.approx(0.15), "since then no request waited"


def test_with_tenants_in_turn_a_request_waits_for_no_more_of_another_tenant_than_of_its_own():
    made = backlog(seconds=0.5)
    for id_ in range(20):
        made.enter(id_, 100, "busy")
    with pytest.raises(OverloadedError, match="for others"):
        made.check(100, tenant="quiet")
    made.shares = True
    made.check(100, tenant="quiet")
    assert made.ahead(100, "quiet") == 100
    with pytest.raises(OverloadedError, match="for others"):
        made.check(100, tenant="busy")
    made.enter(20, 200, "quiet")
    assert made.ahead(100, "quiet") == 200 + 300
    assert made.ahead(100, "third") == 100 + 100
