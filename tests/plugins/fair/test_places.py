"""A tenant that has no request in a full batch is owed one place of it, whatever credit the others have left."""

from __future__ import annotations

import pytest
from infeng_fair.policy import LATELY, MANY_PLACES, NEW_COST, Fair, _Full
from virtual_clock import Job, Outcome, run

from infeng_core.api import BlockPool, Limits, Request, RunningRequest, Scheduler

PLACES = 4
LIMITS = Limits(512, PLACES, PLACES, 1024, 512)
STEP = 0.008 + 0.001 * PLACES
"""Seconds of a step of the virtual clock in which the batch decodes."""


@pytest.fixture
def without_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody be owed a place."""
    monkeypatch.setattr(Fair, "_full", lambda self: _Full(-float("inf"), ()))


def sequence(id_: int, tenant: str, prompt: int = 16, new: int = 800) -> RunningRequest:
    return RunningRequest.start(id_, Request((1,) * prompt, tenant=tenant), [1] * prompt, prompt + new, seed=0)


# --------------------------------------------------------------------------------------------------- long answers ---


def beside_long_answers(fair) -> Outcome:
    """Serve "short" until it has had more than all that "long" asks for; then its next request meets a full batch."""
    jobs = [Job(0.0, 512, 1, "short") for _ in range(8)]
    jobs += [Job(8.0, 16, 500, "long") for _ in range(PLACES)]
    jobs += [Job(9.0, 16, 2, "short")]
    return run(fair(burst=4096), jobs, LIMITS)


def test_a_short_request_displaces_one_of_the_long_answers_that_fill_the_batch(fair):
    outcome = beside_long_answers(fair)
    assert outcome.first[-1] <= 4 * STEP
    assert outcome.preempted == 1
    assert max(outcome.last) < float("inf")


@pytest.mark.usefixtures("without_places")
def test_without_that_rule_it_waits_until_the_credit_is_spent(fair):
    outcome = beside_long_answers(fair)
    assert outcome.first[-1] > 100 * STEP
    assert outcome.preempted == 0


# ------------------------------------------------------------------------------------ late logit processors ---


def make(policy: Fair) -> Scheduler:
    return Scheduler(LIMITS, BlockPool(LIMITS.kv_blocks), policy)


def step(scheduler: Scheduler, now: float, late: str = "") -> list[str]:
    """Run a step in which the logit processors of a tenant are late; return whose requests had rows."""
    batch = scheduler.next_batch(now)
    assert batch is not None
    ones = [segment.sequence for segment in batch.segments if segment.sampled]
    drawn = [[] if one.request.tenant == late else [1] for one in ones]
    ended = [one for one, new in zip(ones, drawn, strict=True) if one.length + len(new) == len(one.tokens)]
    scheduler.commit(batch, drawn, ended, now)
    return [segment.sequence.request.tenant for segment in batch.segments]


def test_a_request_displaces_one_of_those_that_fill_the_batch_and_make_no_tokens(fair):
    policy = fair(burst=4096)(LIMITS)
    scheduler = make(policy)
    for id_ in range(PLACES):
        scheduler.add(sequence(id_, "late"), 0.0)
    for now in range(3):
        assert step(scheduler, float(now), late="late") == ["late"] * PLACES
    scheduler.add(sequence(PLACES, "other", new=1), 3.0)
    assert sorted(step(scheduler, 3.0, late="late")) == ["late"] * (PLACES - 1) + ["other"]
    assert step(scheduler, 4.0, late="late") == ["late"] * PLACES, "the place is given back"


def counter(policy: Fair, tenant: str) -> float:
    return policy._accounts.of(tenant).counter


def test_a_place_held_while_processors_are_late_costs_as_much_as_a_token(fair):
    policy = fair(tenants={"late": "2"})(LIMITS)
    scheduler = make(policy)
    scheduler.add(sequence(0, "late"), 0.0)
    step(scheduler, 0.0)
    before = counter(policy, "late")
    for now in range(1, 6):
        step(scheduler, float(now), late="late")
    assert counter(policy, "late") == before + 5 * NEW_COST / 2
    step(scheduler, 6.0)
    assert counter(policy, "late") == before + 6 * NEW_COST / 2
    assert policy.counts()["tenants"]["late"].new_tokens == 2, "what was served is counted as ever"


def test_rows_of_a_prompt_that_is_computed_again_after_a_preemption_cost_nothing(fair):
    policy = fair()(LIMITS)
    scheduler = Scheduler(Limits(40, 4, 4, 1024, 512), BlockPool(512), policy)
    one = sequence(0, "a", prompt=100)
    scheduler.add(one, 0.0)
    for now in range(2):
        step(scheduler, float(now))
    before = counter(policy, "a")
    scheduler.preempt(one, 2.0)
    assert step(scheduler, 2.0) == step(scheduler, 3.0) == ["a"]
    assert counter(policy, "a") == before


# ----------------------------------------------------------------------------------------------- who is moved ---


def filled(policy: Fair, *tenants: str) -> list[RunningRequest]:
    """Return the requests of a batch."""
    running = [sequence(id_, tenant) for id_, tenant in enumerate(tenants)]
    for one in running:
        policy.add(one, 0.0)
        policy.remove(one, 0.0)
        one.computed = one.length - 1
    return running


@pytest.mark.parametrize(
    ("tenants", "moved"),
    [
        (["a", "a", "a", "a"], True),
        (["a", "a", "b", "b"], True),
        (["a", "b", "c", "d"], False),  # nobody has two
        (["a", "a", "a", "new"], False),  # it has one
        (["a", "a", "a"], False),  # a place is free
    ],
)
def test_only_one_of_several_requests_of_a_tenant_in_a_full_batch_makes_room(fair, tenants, moved):
    policy = fair(quantum=10**6)(LIMITS)
    running = filled(policy, *tenants)
    new = sequence(9, "new")
    policy.add(new, 0.0)
    displaced = policy.displaced(new, running, 0.0)
    assert (displaced is not None) == moved
    if displaced is not None:
        assert sum(one.request.tenant == displaced.request.tenant for one in running) > 1


def test_a_tier_with_an_earlier_target_keeps_its_places_until_the_request_of_another_is_due(fair):
    policy = fair(tenants={"soon": "1@interactive"}, others="1@bulk", quantum=10**6)(LIMITS)
    running = filled(policy, *["soon"] * PLACES)
    late = sequence(9, "late")
    policy.add(late, 0.0)
    due = policy._accounts.of("late").deadline(late)
    assert due > 0.0
    assert policy.displaced(late, running, due - 0.1) is None
    assert policy.displaced(late, running, due) in running


def test_a_place_is_for_whom_it_was_freed_until_anything_starts_or_the_next_step(fair):
    policy = fair(burst=4096, quantum=1)(LIMITS)
    running = filled(policy, *["had less"] * PLACES)
    policy._accounts.of("had more").counter = counter(policy, "had less") + 1000
    wants = sequence(9, "had more")
    policy.add(wants, 0.0)
    policy.active(running, 0.0)
    displaced = policy.displaced(wants, running, 0.0)
    assert displaced is not None
    policy.add(displaced, 0.0)
    assert list(policy.order(0.0)) == [wants, displaced]
    policy.active([one for one in running if one is not displaced], 1.0)
    assert next(policy.order(1.0)) is displaced, "it was freed in vain"


@pytest.mark.parametrize(("beyond", "first"), [(0, "had more"), (1, "had less")])
def test_a_tenant_is_owed_a_place_up_to_burst_and_quantum_beyond_the_least(fair, beyond, first):
    policy = fair(burst=200, quantum=100)(LIMITS)
    running = filled(policy, *["had less"] * PLACES)
    for id_, tenant in enumerate(("had more", "had less"), 9):
        policy.add(sequence(id_, tenant), 0.0)
    policy._accounts.of("had more").counter = counter(policy, "had less") + 200 + 100 + beyond
    order = list(policy.order(0.0))
    assert order[0].request.tenant == first
    displaced = [policy.displaced(one, running, 0.0) for one in order]
    assert (displaced[0] in running) == (first == "had more")
    assert displaced[1] is None


# ------------------------------------------------------------------------------------------ the last free place ---


def batch_with_one_place_left(policy: Fair, now: float) -> list[RunningRequest]:
    """Let "here" have all places but one, and want more; "back" had something to do at 0."""
    gone = filled(policy, "back")
    policy.active(gone, 0.0)
    policy.ended(gone[0], 0.0)
    running = []
    for id_ in range(1, MANY_PLACES):
        running.append(sequence(id_, "here"))
        policy.add(running[-1], now)
        policy.remove(running[-1], now)
    policy.add(sequence(99, "here"), now)
    return running


def test_the_last_place_is_kept_for_a_tenant_that_had_something_to_do_lately(fair):
    policy = fair()(Limits(512, MANY_PLACES, MANY_PLACES, 1024, 512))
    batch_with_one_place_left(policy, 1.0)
    assert list(policy.order(1.0)) == []
    new = sequence(100, "back")
    policy.add(new, 2.0)
    assert list(policy.order(2.0)) == [new]


def test_the_last_place_is_anybodys_once_the_others_stay_away_and_in_small_batches(fair):
    policy = fair()(Limits(512, MANY_PLACES, MANY_PLACES, 1024, 512))
    batch_with_one_place_left(policy, 1.0)
    assert [one.id for one in policy.order(LATELY + 1)] == [99]
    small = fair()(Limits(512, MANY_PLACES + 1, MANY_PLACES + 1, 1024, 512))
    batch_with_one_place_left(small, 1.0)
    assert [one.id for one in small.order(1.0)] == [99], "two places are left"
