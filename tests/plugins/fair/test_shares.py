"""Who gets how much, and how soon: the policy in the scheduler on a virtual clock, and the bounds that it promises."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence as Several

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_clock import Job, Outcome, run

from infeng_core.api import Request
from infeng_core.api.engines import FirstCome, Limits, RunningRequest, Scheduler

NEVER = float("inf")


def poisson(
    random_: random.Random, rate: float, end: float, tenant: str, prompt: tuple[int, int], new: tuple[int, int]
) -> list[Job]:
    jobs, now = [], random_.expovariate(rate)
    while now < end:
        jobs.append(Job(now, random_.randint(*prompt), random_.randint(*new), tenant))
        now += random_.expovariate(rate)
    return jobs


def first_tokens(outcome: Outcome, jobs: Several[Job], tenant: str) -> list[float]:
    return sorted(first for first, job in zip(outcome.first, jobs, strict=False) if job.tenant == tenant)


def jain(values: Several[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def everything(outcome: Outcome, end: float) -> float:
    return sum(outcome.served(tenant, 0, end) for tenant in outcome.service)


@pytest.mark.parametrize(
    ("seed", "blocks"),
    [(0, 320), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((0, 2048), (1, 2048), (2, 320)))],
)
def test_a_tenant_with_100_times_the_load_does_not_slow_the_others(fair, seed: int, blocks: int):
    bounds, end = Limits(512, 16, 16, 1024, blocks), 250.0
    random_ = random.Random(seed)
    load = ((200, 500), (20, 80))
    polite = poisson(random_, 0.4, end - 20, "polite", *load)
    both = polite + poisson(random_, 40.0, end, "greedy", *load)
    alone = first_tokens(run(fair(), polite, bounds), polite, "polite")
    shared = run(fair(), both, bounds, until=end)
    first_come = run(FirstCome, both, bounds, until=end)
    beside = first_tokens(shared, both[: len(polite)], "polite")
    late = int(0.99 * len(alone))
    assert beside[late] <= 1.2 * alone[late]
    assert first_tokens(first_come, both, "polite")[late] > 100 * alone[late]
    assert everything(shared, end) >= 0.95 * everything(first_come, end)
    assert shared.tokens >= 0.95 * first_come.tokens


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("weights", [{}, {"long": "2", "short": "0.5"}])
def test_overloading_tenants_are_served_by_their_weights(fair, seed: int, weights: dict[str, str]):
    bounds, end = Limits(512, 16, 16, 1024, 600), 60.0
    random_ = random.Random(seed)
    jobs = poisson(random_, 5, end, "long", (300, 800), (8, 30))
    jobs += poisson(random_, 12, end, "short", (16, 60), (60, 200))
    jobs += poisson(random_, 10, end, "middle", (64, 400), (16, 100))
    shared = run(fair(tenants=weights), jobs, bounds, until=end)
    each = [shared.served(name, 10, end) / float(weights.get(name, 1)) for name in ("long", "short", "middle")]
    assert jain(each) >= 0.99


@pytest.mark.parametrize("new", [1, 2000], ids=["nobody decodes", "somebody decodes"])
def test_a_prompt_waits_for_no_prompt_of_a_tenant_that_has_had_more(fair, new: int):
    """Nobody of the other tenant is in the queue: its prompt has begun."""
    bounds = Limits(2048, 4, 4, 4096, 1024)
    jobs = [Job(0.0, 10, new, "greedy"), Job(0.9, 2000, 2, "greedy"), Job(1.1, 100, 2, "polite")]
    alone = 0.108
    assert run(fair(), jobs, bounds, until=20).first[2] < 0.52 + 1.2 * alone
    assert run(fair(pause_ms=0), jobs, bounds, until=20).first[2] > 1.5


def test_tenants_pause_one_step_for_the_next_request_to_start(fair):
    """A third's prompt fills the first steps, so that they say nothing of whoever waits."""
    policy = fair()(Limits(64, 4, 4, 4096, 1024))
    requests = []
    for id_, (tenant, length) in enumerate((("greedy", 3000), ("third", 300), ("polite", 60))):
        requests.append(
            RunningRequest.start(id_, Request((0,) * length, tenant=tenant), [0] * length, length + 8, seed=0)
        )
        policy.add(requests[-1], 1.0)
    greedy, third = requests[:2]
    for one in (greedy, third):
        policy.remove(one, 1.0)
    running = [greedy, third]
    for now in (2.0, 3.0):
        assert list(policy.active(running, now)) == [third]
    third.computed = 299
    assert list(policy.active(running, 4.0)) == [third], "it is called"
    assert list(policy.active(running, 4.0)) == running, "it has not started"


def test_an_idle_tenant_returns_with_a_credit_of_at_most_the_burst(fair):
    bounds = Limits(64, 4, 4, 256, 64)
    jobs = [Job(0.0, 60, 10, "there") for _ in range(500)] + [Job(5.0, 60, 10, "back") for _ in range(500)]
    outcomes = {burst: run(fair(burst=burst, quantum=1, pause_ms=0), jobs, bounds, until=25) for burst in (0, 2000)}
    ahead = {
        burst: outcome.served("back", 5, 25) - outcome.served("there", 5, 25) for burst, outcome in outcomes.items()
    }
    assert abs(ahead[0]) <= 4 * 80
    assert 2000 - 4 * 80 <= ahead[2000] <= 2000 + 4 * 80


def test_a_tier_with_an_earlier_target_is_answered_sooner_and_gets_no_more(fair):
    bounds, end = Limits(128, 8, 8, 256, 128), 60.0
    random_ = random.Random(5)
    load = ((60, 120), (5, 15))
    jobs = [job for name in ("soon", "late") for job in poisson(random_, 4.0, end, name, *load)]
    tiers = {"soon": "1@interactive", "late": "1@bulk"}
    outcome = run(fair(tenants=tiers), jobs, bounds)
    equal = run(fair(), jobs, bounds)

    def middle(found: Outcome, name: str) -> float:
        firsts = first_tokens(found, jobs, name)
        return firsts[len(firsts) // 2]

    assert middle(outcome, "soon") < 0.95 * middle(equal, "soon")
    assert max(outcome.first) < NEVER
    flood = [Job(0.0, 80, 10, name) for name in tiers for _ in range(300)]
    flooded = run(fair(tenants=tiers), flood, bounds, until=40)
    assert jain([flooded.served(name, 0, 40) for name in tiers]) > 0.99


def test_priority_counts_as_waiting_time_so_no_request_starves(fair):
    bounds = Limits(64, 1, 1, 64, 8)
    jobs = [Job(0.0, 60, 2), Job(0.01, 60, 2), Job(0.02, 60, 2, priority=1)]
    jobs += [Job(0.05 * place, 60, 2, priority=1) for place in range(1, 200)]
    outcome = run(fair(tiers={"standard": "3000"}, group_ms=0), jobs, bounds)
    assert outcome.first[0] < outcome.first[2] < outcome.first[1]
    passing = [job for job, start in zip(jobs, outcome.started, strict=True) if start < outcome.started[1]]
    assert len(passing) > 20
    assert all(job.at <= jobs[1].at + 3.0 for job in passing)


LONGEST_PROMPT, LONGEST_ANSWER, RUNNING = 40, 10, 4

floods = st.lists(st.tuples(st.integers(1, LONGEST_PROMPT), st.integers(1, LONGEST_ANSWER)), min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    shapes=st.tuples(floods, floods, floods),
    weights=st.tuples(*[st.sampled_from([0.5, 1, 2, 4])] * 3),
    tiers=st.tuples(*[st.sampled_from(["interactive", "standard", "bulk"])] * 3),
    comes=st.tuples(st.just(0.0), st.floats(0, 5), st.floats(0, 5)),
    burst=st.integers(0, 400),
    quantum=st.integers(1, 400),
    pause=st.sampled_from([0, 100, 500]),
    blocks=st.integers(5, 16),
)
def test_service_by_weight_of_two_tenants_that_always_wait_differs_by_a_constant(
    fair, shapes, weights, tiers, comes, burst, quantum, pause, blocks
):
    """The bound of docs/scheduling.md: 2 (burst + quantum) + R (2 P + 2 N) (1/v + 1/w).

    A tenant that is owed a place starts with a counter of up to burst + quantum beyond the least, so time is ahead of
    one that waits by no more than that; twice, as either of the two may be ahead at one end of an interval.
    """
    count = 60
    jobs = [
        Job(come, *shape, name)
        for name, shape_list, come in zip("abc", shapes, comes, strict=True)
        for shape in itertools.islice(itertools.cycle(shape_list), count)
    ]
    names = {name: f"{weight}@{tier}" for name, weight, tier in zip("abc", weights, tiers, strict=True)}
    always: dict[str, list[float]] = {name: [] for name in "abc"}  # when each began and last was seen to wait

    def watch(scheduler: Scheduler, now: float) -> None:
        for name, found in scheduler.policy.counts()["tenants"].items():
            if found.waiting:
                always[name].append(now)

    policy = fair(tenants=names, burst=burst, quantum=quantum, pause_ms=pause)
    bounds = Limits(32, RUNNING, RUNNING, 64, blocks)
    outcome = run(policy, jobs, bounds, watch=watch)
    assert max(outcome.last) < NEVER
    weight = dict(zip("abc", weights, strict=True))
    for one, other in itertools.combinations("abc", 2):
        if not always[one] or not always[other]:
            continue
        begin, end = max(always[one][0], always[other][0]), min(always[one][-1], always[other][-1])
        times = sorted(time for time in set(always[one]) & set(always[other]) if begin <= time <= end)
        lead = [
            outcome.served(one, 0, time) / weight[one] - outcome.served(other, 0, time) / weight[other]
            for time in times[:: max(1, len(times) // 40)]
        ]
        per_weight = 1 / weight[one] + 1 / weight[other]
        bound = 2 * (burst + quantum) + RUNNING * 2 * (LONGEST_PROMPT + LONGEST_ANSWER) * per_weight
        assert not lead or max(lead) - min(lead) <= bound


def test_the_first_come_policy_does_not_hold_the_bound():
    jobs = [Job(0.0, 40, 10, "a") for _ in range(150)] + [Job(0.0, 4, 1, "b") for _ in range(150)]
    outcome = run(FirstCome, sorted(jobs), Limits(32, RUNNING, RUNNING, 64, 16))
    assert outcome.served("a", 0, 10) - outcome.served("b", 0, 10) > RUNNING * 4 * (LONGEST_PROMPT + LONGEST_ANSWER)
