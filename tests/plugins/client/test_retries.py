"""When calls are tried again, on a clock that only waits make go on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("infeng_client", reason="the client wheel is not installed")

from infeng_client import BadRequestError, ConnectionFailedError, OverloadedError, Retries, ServerError, TimedOutError
from infeng_client.calls import Call, post
from infeng_client.errors import retry_after
from infeng_client.retries import STANDARD
from infeng_client.sending import Came, Reply, Send, Terms, Wait, answered

NOW = 1_700_000_000.0


class Clock:
    """A clock, and the waits that made it go on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def terms(self, retries: Retries = STANDARD, timeout: float | None = None, draw: float = 0.0) -> Terms:
        return Terms(retries, timeout, clock=lambda: self.now, wall=lambda: NOW, draw=lambda: draw)


def run(clock: Clock, terms: Terms, answer: Callable[[Send], Came], call: Call | None = None) -> tuple[Any, list[Send]]:
    """Carry out a call; return its reply and what was sent."""
    steps, came, sent = answered(call or Call("GET", "/"), terms), None, []
    while True:
        try:
            step = steps.send(came)
        except StopIteration as end:
            return end.value, sent
        came = None
        if isinstance(step, Wait):
            clock.waits.append(step.seconds)
            clock.now += step.seconds
        else:
            assert isinstance(step, Send)
            sent.append(step)
            came = answer(step)


def replies(*came: Came) -> Callable[[Send], Came]:
    rest = list(came)
    return lambda _: rest.pop(0)


OK = Reply(200, {}, b"{}")
LOST = ConnectionFailedError("refused")


def test_the_wait_doubles_up_to_the_cap_with_jitter_below_it():
    for draw in (0.0, 0.999):
        clock = Clock()
        reply, sent = run(clock, clock.terms(Retries(7, first=1.0, cap=10.0), draw=draw), replies(*[LOST] * 7, OK))
        assert (reply, len(sent)) == (OK, 8)
        assert clock.waits == pytest.approx([wait * (1 + draw) / 2 for wait in (1, 2, 4, 8, 10, 10, 10)])


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("headers", "asked"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:32 GMT"}, 12.0),
        ({"retry-after": "0"}, 0.0),
    ],
)
def test_a_retry_never_comes_earlier_than_the_server_asked(status, headers, asked):
    for draw in (0.0, 0.5, 0.999):
        clock = Clock()
        run(clock, clock.terms(draw=draw), replies(Reply(status, headers, b""), OK))
        assert asked <= clock.waits[0] <= asked + max(asked / 4, 0.1)


def test_a_past_date_a_word_or_an_invalid_number_asks_for_no_wait():
    assert retry_after({"retry-after": "Tue, 14 Nov 2000 22:13:32 GMT"}, NOW) == 0.0
    for text in ("soon", "nan", "inf", "-1", ""):
        assert retry_after({"retry-after": text}, NOW) is None
    assert retry_after({"retry-after-ms": "x", "retry-after": "2"}, NOW) == 2.0


@pytest.mark.parametrize("came", [Reply(400, {}, b""), Reply(500, {}, b""), TimedOutError(None, "late"),
                                  ConnectionFailedError("broke", begun=True)])  # fmt: skip
def test_permanent_failures_and_begun_answers_are_not_retried(came):
    clock = Clock()
    with pytest.raises((BadRequestError, ServerError, TimedOutError, ConnectionFailedError)):
        run(clock, clock.terms(), replies(came))
    assert clock.waits == []


def test_after_the_last_attempt_the_error_is_the_servers():
    clock = Clock()
    body = b'{"error": {"message": "full", "type": "overloaded", "code": "queue"}}'
    with pytest.raises(OverloadedError, match="full") as caught:
        run(clock, clock.terms(Retries(2)), lambda _: Reply(429, {"retry-after": "3", "x-request-id": "r1"}, body))
    assert len(clock.waits) == 2
    error = caught.value
    assert (error.status, error.retry_after, error.code, error.request_id) == (429, 3.0, "queue", "r1")


def test_a_call_waits_for_the_end_of_its_previous_attempt():
    clock = Clock()
    body = b'{"error": {"message": "is being answered", "code": "idempotency_key_in_use"}}'
    run(clock, clock.terms(), replies(Reply(409, {"retry-after": "1"}, body), OK))
    assert clock.waits == [1.0]
    with pytest.raises(BadRequestError):
        run(clock, clock.terms(), replies(Reply(409, {"retry-after": "1"}, b'{"error": {"code": "model_changed"}}')))


def test_a_wait_beyond_the_deadline_is_an_error_at_once():
    clock = Clock()
    with pytest.raises(OverloadedError):
        run(clock, clock.terms(timeout=5.0), replies(Reply(503, {"retry-after": "60"}, b"")))
    assert clock.now == 0.0


def test_each_attempt_gets_the_remaining_time_and_none_begins_without():
    clock = Clock()

    def slow(step: Send) -> Came:
        clock.now += 4.0
        return LOST

    terms = clock.terms(Retries(9, first=2.0), timeout=10.0)
    with pytest.raises(ConnectionFailedError):
        run(clock, terms, slow)
    assert clock.now <= 10.0

    clock = Clock()
    terms = clock.terms(timeout=3.0)
    clock.now = 3.0
    with pytest.raises(TimedOutError, match="timeout of 3 s"):
        run(clock, terms, replies(OK))


def test_an_idempotency_key_is_the_same_for_all_attempts_of_one_call_only():
    clock = Clock()
    call, other = post("/x", {}), post("/x", {})
    _, sent = run(clock, clock.terms(), replies(LOST, Reply(429, {}, b""), OK), call)
    keys = {step.call.headers["idempotency-key"] for step in sent}
    assert len(sent) == 3
    assert len(keys) == 1
    assert other.headers["idempotency-key"] not in keys


@given(st.integers(0, 6), st.floats(0.01, 5), st.floats(0.01, 60), st.floats(0, 100), st.randoms())
def test_no_call_outlasts_its_timeout_or_its_attempts(most, first, cap, timeout, draws: random.Random):
    clock = Clock()
    terms = Terms(Retries(most, first, cap), timeout + 0.001, lambda: clock.now, lambda: NOW, draws.random)
    sent = 0

    def answer(step: Send) -> Came:
        nonlocal sent
        sent += 1
        assert step.left is not None
        assert 0 < step.left <= timeout + 0.001
        return draws.choice([LOST, Reply(429, {"retry-after": str(draws.random() * 10)}, b"")])

    with pytest.raises((ConnectionFailedError, OverloadedError)):
        run(clock, terms, answer)
    assert sent <= most + 1
    assert clock.now <= timeout + 0.001
