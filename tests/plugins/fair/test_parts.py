"""The parts of the policy: the order within a tenant, accounts, what a call costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from infeng_fair.accounts import Accounts
from infeng_fair.counts import OTHERS
from infeng_fair.locality import LOOKAHEAD, PEEKS, Locality

from infeng_core.api import Request
from infeng_core.api.engines import Limits, RunningRequest

LIMITS = Limits(512, 32, 32, 1024, 4096)


def request(id_: int, arrived: float = 0.0, **more: Any) -> RunningRequest:
    made = RunningRequest.start(id_, Request((1,) * 64, **more), [1] * 64, 80, seed=0)
    made.arrived = arrived
    return made


@given(
    waiting=st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from([None, "a", "b", "c"]), st.integers(0, 63)), max_size=80
    ),
    runs=st.sets(st.sampled_from(["a", "b", "c"])),
    group=st.sampled_from([0.0, 0.05, 0.3]),
)
def test_a_request_is_never_passed_by_one_due_more_than_the_bound_later(waiting, runs, group):
    locality = Locality(group)
    found = {request(id_, adapter=adapter): cached for id_, (_, adapter, cached) in enumerate(waiting)}
    locality.cached = found.__getitem__
    for name in runs:
        locality.start(request(1000, adapter=name))
    queue = sorted((due, one.id, one) for one, (due, *_) in zip(found, waiting, strict=True))
    due = {one: place for place, _, one in queue}
    order = list(locality.ordered(queue))
    assert sorted(one.id for one in order) == list(range(len(waiting)))
    for place, one in enumerate(order):
        assert all(due[earlier] <= due[one] + group + 1e-9 for earlier in order[:place])


def test_requests_with_running_adapters_or_a_cached_prefix_go_first():
    locality = Locality(1.0)
    plain, cached, runs = request(0, adapter="a"), request(1, adapter="b"), request(2, adapter="c")
    locality.cached = {plain: 0, cached: 32, runs: 0}.__getitem__
    locality.start(request(9, adapter="c"))
    queue = [(0.0, 0, plain), (0.1, 1, cached), (0.2, 2, runs)]
    assert list(locality.ordered(queue)) == [runs, cached, plain]


def test_the_cache_is_asked_about_few_requests_in_a_step(fair):
    asked: list[int] = []
    policy = fair()(LIMITS)
    policy.attach(lambda one: asked.append(one.id) or 0)
    for id_ in range(1000):
        policy.add(request(id_, tenant=f"t{id_ % 50}", adapter=f"a{id_ % 20}"), 0.0)
    for _ in range(5):
        assert len({one.id for one in policy.order(1.0)}) == 1000
    assert 0 < len(asked) <= PEEKS


@pytest.mark.slow
def test_the_first_request_is_found_without_sorting_the_whole_queue(fair):
    class Watched(list):
        seen = 0

        def __iter__(self):
            for place in super().__iter__():
                Watched.seen += 1
                yield place

    policy = fair()(LIMITS)
    for id_ in range(5000):
        policy.add(request(id_, tenant="one", adapter=f"a{id_ % 20}"), 0.0)
    [tenant] = policy._queued
    tenant.queue = Watched(tenant.queue)
    assert next(policy.order(1.0)).id == 0
    assert 0 < Watched.seen <= LOOKAHEAD + 1


def test_tenants_beyond_the_bound_share_an_account_and_no_count_is_lost(fair):
    policy = fair(max_tenants=3, burst=0)(LIMITS)
    ones = [request(id_, tenant=f"t{id_}") for id_ in range(10)]
    for one in ones:
        policy.add(one, 0.0)
    counts = policy.counts()["tenants"]
    assert set(counts) == {"t0", "t1", "t2", OTHERS}
    assert sum(found.requests for found in counts.values()) == 10
    for one in ones:
        policy.remove(one, 0.0)
        policy.ended(one, 0.0)
    for id_ in range(10, 40):
        late = request(id_, tenant=f"u{id_}")
        policy.add(late, 0.0)
        policy.remove(late, 0.0)
        policy.ended(late, 0.0)
    counts = policy.counts()["tenants"]
    assert len(counts) <= 4
    assert sum(found.requests for found in counts.values()) == 40
    assert all(found.waiting == found.running == 0 for found in counts.values())


def test_prompt_tokens_charged_and_not_computed_are_refunded(fair):
    policy = fair(burst=0)(LIMITS)
    accounts: Accounts = policy._accounts
    one = request(0, tenant="a")
    policy.add(one, 0.0)
    policy.remove(one, 0.0)
    assert accounts.of("a").counter == 64
    policy.served([(one, 16, 0)], 0.1)
    assert accounts.of("a").counter == 64
    policy.ended(one, 0.2)
    assert accounts.of("a").counter == 16
