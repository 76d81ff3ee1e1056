"""A grammar whose texts can be read in many ways costs its own request, and that no more than a bounded time."""

from __future__ import annotations

import pytest
from grammar_parts import Make, allowed, may_come
from infeng_grammar.budget import SECONDS, SECONDS_PER_TOKEN, Budget
from infeng_grammar.processor import Grammar

from infeng_core.api import RequestError

AMBIGUOUS = {"lark": "start: e\ne: e e | /./"}


class Clock:
    """Goes on by some seconds whenever it is looked at."""

    def __init__(self, step: float) -> None:
        self.now, self.step, self.looks = 0.0, step, 0

    def __call__(self) -> float:
        self.looks += 1
        self.now += self.step
        return self.now


def timed(processor: Grammar, clock: Clock) -> Grammar:
    processor._budget = Budget("grammar lark", clock)
    return processor


def test_a_request_over_its_time_budget_ends_and_the_next_with_its_grammar_runs(make: Make) -> None:
    slow, quick = timed(make(AMBIGUOUS), Clock(SECONDS / 4.5)), timed(make(AMBIGUOUS), Clock(0.0))
    for _ in range(5):
        allowed(slow)
    for call in (lambda: slow.row(()), lambda: slow.extend([300]), slow.forced):
        with pytest.raises(RequestError, match=r"grammar lark: its masks take more than 250 ms and 2 ms for each"):
            call()
    assert allowed(quick) and allowed(make(AMBIGUOUS))


def test_tokens_earn_time_up_to_the_initial_budget() -> None:
    clock = Clock(0.0)
    budget = Budget("grammar", clock)
    budget.earn(10_000)
    clock.step = SECONDS + 10.5 * SECONDS_PER_TOKEN
    with budget:
        pass
    with pytest.raises(RequestError):
        budget.__enter__()
    budget.earn(11)
    with budget:
        pass


@pytest.mark.parametrize("argument", [AMBIGUOUS, {"lark": "start: e\ne: e e e | e e | /./"}], ids=["two", "three"])
def test_one_mask_of_an_ambiguous_grammar_is_bounded_without_a_clock(make: Make, spell, argument) -> None:
    processor = timed(make(argument), Clock(0.0))
    [token] = spell("a")
    with pytest.raises(RequestError, match="Too many items"):
        for _ in range(180):
            assert may_come(processor, token)
            processor.extend([token])
