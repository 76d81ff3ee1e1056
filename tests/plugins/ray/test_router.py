"""The choice of a replica: affinity, the bound, and what a lost replica moves."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections import Counter

import pytest
from infeng_ray.router import FACTOR, FLOOR, ROUTES, Rendezvous, Router, key_of

KEYS = [key_of("acme", f"adapter-{k}") for k in range(1000)]


def with_replicas(router: Router, count: int) -> Router:
    for number in range(count):
        router.add(f"replica-{number}")
    return router


def chosen(router: Router, keys: list[int]) -> list[str]:
    return [str(router.choose(key)) for key in keys]


def test_calls_of_one_adapter_meet_on_one_replica_and_adapters_are_spread():
    router = with_replicas(Rendezvous(), 10)
    assert chosen(router, KEYS) == chosen(router, KEYS)
    counts = Counter(chosen(router, KEYS))
    assert len(counts) == 10 and max(counts.values()) < 2 * min(counts.values())


def test_tenants_and_prompts_are_told_apart():
    assert (
        len({key_of("a", "x"), key_of("b", "x"), key_of("a", "", b"x"), key_of("a", "", b"y"), key_of("ax", "")}) == 5
    )
    assert key_of("1:a", "") != key_of("1", "a") != key_of("", "1a")


@pytest.mark.parametrize("route", ["rendezvous", "hash"])
def test_a_lost_replica_moves_its_own_keys_alone_which_are_one_in_all_replicas(route):
    moved = 0
    for lost in range(20):
        router = with_replicas(ROUTES[route](), 20)
        before = chosen(router, KEYS)
        router.remove(f"replica-{lost}")
        after = chosen(router, KEYS)
        assert all(was == now or was == f"replica-{lost}" for was, now in zip(before, after, strict=True))
        heirs = {now for was, now in zip(before, after, strict=True) if was != now}
        assert len(heirs) > 5  # and no single one inherits all
        moved += sum(was != now for was, now in zip(before, after, strict=True))
    assert moved / len(KEYS) / 20 == pytest.approx(1 / 20)


def test_a_new_replica_takes_keys_and_moves_no_other():
    router = with_replicas(Rendezvous(), 9)
    before = chosen(router, KEYS)
    router.add("replica-9")
    after = chosen(router, KEYS)
    assert {now for was, now in zip(before, after, strict=True) if was != now} == {"replica-9"}


def test_no_replica_gets_more_than_a_quarter_above_the_mean_whatever_comes():
    rng = random.Random(5)
    router = with_replicas(Rendezvous(), 13)
    running: list[str] = []
    for _ in range(5000):
        if running and rng.random() < 0.45:
            router.end(running.pop(rng.randrange(len(running))))
            continue
        key = KEYS[0] if rng.random() < 0.6 else rng.choice(KEYS)
        name = router.choose(key)
        assert name is not None
        router.begin(name)
        running.append(name)
        assert router.loads[name] <= max(FLOOR, math.ceil(FACTOR * router.total / 13))
    assert router.total == len(running)


def test_a_hot_adapter_uses_as_many_replicas_as_it_needs_and_others_stay_where_they_are():
    router = with_replicas(Rendezvous(), 10)
    before = chosen(router, KEYS)
    for _ in range(40):
        name = router.choose(KEYS[0])
        assert name is not None
        router.begin(name)
    used = [name for name, load in router.loads.items() if load]
    assert 8 <= len(used) <= 10 and max(router.loads.values()) <= 5
    stay = [now == was for was, now in zip(before, chosen(router, KEYS), strict=True) if router.loads[was] < FLOOR]
    assert all(stay)


def test_a_replica_that_has_the_adapter_in_memory_comes_first_unless_it_is_full():
    router = with_replicas(Rendezvous(), 6)
    first = router.choose(KEYS[0], ["adapter-0"])
    other = next(name for name in router.replicas if name != first)
    router.report(other, ["adapter-0", "another"])
    assert router.choose(KEYS[0], ["adapter-0"]) == other
    assert router.choose(KEYS[0], ["adapter-1"]) == first
    for _ in range(FLOOR):
        router.begin(other)
    assert router.choose(KEYS[0], ["adapter-0"]) == first
    router.report(other, ["another"])
    router.end(other)
    assert router.choose(KEYS[0], ["adapter-0"]) == first


def test_what_a_replica_holds_follows_it_when_others_leave():
    router = with_replicas(Rendezvous(), 5)
    router.report("replica-4", ["x"])
    router.report("replica-0", ["x", "y"])
    router.remove("replica-0")
    router.remove("unknown")
    assert {router.choose(key, ["x"]) for key in KEYS[:50]} == {"replica-4"}
    assert {router.choose(key, ["y"]) for key in KEYS[:200]} == {f"replica-{k}" for k in (1, 2, 3, 4)}


@pytest.mark.parametrize("route", ROUTES)
def test_every_router_avoids_what_has_refused_and_says_when_none_is_left(route):
    router = with_replicas(ROUTES[route](), 3)
    for key in KEYS[:100]:
        assert router.choose(key, (), ["replica-0", "replica-2"]) == "replica-1"
        assert router.choose(key, (), router.replicas) is None
    assert ROUTES[route]().choose(KEYS[0]) is None


def test_the_ends_of_calls_of_a_replica_that_left_count_nothing():
    router = with_replicas(Rendezvous(), 2)
    router.begin("replica-0")
    router.remove("replica-0")
    router.end("replica-0")
    router.add("replica-0")
    router.end("replica-0")
    assert router.loads == {"replica-0": 0, "replica-1": 0}


def test_the_router_needs_no_ray_and_no_server():
    code = "import sys, infeng_ray.router; print(any(m.split('.')[0] in ('ray', 'infeng_serve') for m in sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
