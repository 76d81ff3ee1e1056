"""The grammar of loads, and the requests that are drawn from them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from infeng_bench.load.kinds import KINDS, Load
from infeng_bench.load.traffic import ABSENT, GREEDY, Traffic, draw

from infeng_core.api import UsageError


def drawn(text: str, count: int = 400, seed: int = 0, context: int = 2048, capacity: Any = None) -> Traffic:
    return draw(Load.parse(text), count, seed, context, capacity)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("poison:rate=1", "did you mean `poisson`?"),
        ("poisson:rat=1", "did you mean `rate`? (poisson has rate, prompt, output, urgent, prefix, prefixes, load)"),
        ("poisson:rate=0", "rate is '0': give auto or a number of requests a second above 0, or inf"),
        ("poisson:rate=1,rate=2", "rate is given twice"),
        ("poisson:prompt=5-20", "prompt is '5-20': give 512, 128:1024 (uniform) or lognormal:256:0.8 (median, sigma)"),
        ("tenants:others=0", "others is '0': give a whole number of at least 1"),
        ("tenants:adapters=2", "tenants has no key 'adapters'"),
        ("poisson:urgent=2", "urgent is '2': give a share from 0 to 1"),
        ("trace:", "no file is named: give trace:FILE"),
        ("trace:scale=2", "no file is named: give trace:FILE"),
        ("trace:t.csv,scale=-1", "scale is '-1': give auto or a number above 0"),
    ],
)
def test_an_invalid_load_is_an_error_with_its_key_and_the_allowed_values(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Load.parse(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"trace"}))
def test_a_load_shown_with_all_its_keys_reads_back_as_the_same(kind: str) -> None:
    load = Load.parse(kind)
    again = Load.parse(str(load))
    assert (again.kind, dict(again.values)) == (load.kind, dict(load.values))
    assert load.needs_capacity


@pytest.mark.parametrize("text", ["poisson:rate=2", "tenants:rate=2", "zipf:rate=2", "bursts:rate=2,size=4"])
def test_the_same_seed_gives_the_same_requests_and_another_one_others(text: str) -> None:
    first, again, other = list(drawn(text)), list(drawn(text)), list(drawn(text, seed=1))
    assert first == again
    assert first != other
    assert [one.at for one in first] == sorted(one.at for one in first)
    assert 400 / first[-1].at == pytest.approx(2, rel=0.25)


def test_the_greedy_tenant_sends_a_multiple_of_each_other_tenants_requests() -> None:
    traffic = drawn("tenants:greedy=100,others=3,rate=1", 20_000)
    counts = np.bincount(traffic.tenant)
    assert traffic.tenants == (GREEDY, "other0", "other1", "other2")
    assert counts[0] / counts[1:].mean() == pytest.approx(100, rel=0.1)
    left = traffic.without(GREEDY)
    assert len(left) == counts[1:].sum()
    assert set(left.index.tolist()) == set(np.flatnonzero(traffic.tenant != 0).tolist())


def test_a_rate_of_auto_is_the_configured_share_of_the_capacity() -> None:
    asked = []

    def capacity(prompt: float, new: float) -> float:
        asked.append((prompt, new))
        return 10.0

    assert drawn("poisson:prompt=30,output=7", capacity=capacity).rate == pytest.approx(8)
    assert drawn("poisson:prompt=30,output=7,load=1.5", capacity=capacity).rate == pytest.approx(15)
    assert asked == [(30, 7), (30, 7)]
    with pytest.raises(UsageError, match="rate is auto, and the capacity is not known: give rate=NUMBER"):
        drawn("poisson")


def test_requests_never_exceed_the_context_length() -> None:
    traffic = drawn("poisson:rate=1,prompt=lognormal:100:2,output=90,prefix=20,prefixes=3", context=128)
    assert (traffic.prompt + traffic.new <= 128).all()
    assert traffic.new.min() >= 1
    assert traffic.prompt.min() == 21


def test_prompts_of_one_prefix_share_it_and_differ_after_it() -> None:
    traffic = drawn("poisson:rate=1,prompt=40,prefix=16,prefixes=4")
    counts = np.bincount(traffic.prefix)
    assert counts.tolist() == sorted(counts, reverse=True)
    assert len(counts) == 4
    first, second = np.flatnonzero(traffic.prefix == 0)[:2]
    other = np.flatnonzero(traffic.prefix == 1)[0]
    ids = [traffic.ids(int(place), 320) for place in (first, second, other)]
    assert ids[0][:16] == ids[1][:16] != ids[2][:16]
    assert ids[0][16:] != ids[1][16:]
    assert [len(one) for one in ids] == [40, 40, 40]
    assert traffic.without("").tenant.size == 0


def test_adapters_are_as_popular_as_zipfs_law_says_and_the_base_is_one_more_choice() -> None:
    traffic = drawn("zipf:alpha=1,adapters=2,rate=1,include_base", 30_000)
    shares = [float((traffic.adapter == k).mean()) for k in (0, 1, ABSENT)]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.01)
    assert {one.adapter for one in traffic} == {"a0", "a1", None}
    assert (drawn("zipf:alpha=0,adapters=3,rate=1", 5).adapter == [0, 1, 2, 0, 1]).all()


def test_bursts_arrive_at_once_and_other_requests_between_them() -> None:
    traffic = drawn("bursts:rate=2,size=10,every=10", 400)
    times, counts = np.unique(traffic.at, return_counts=True)
    assert (times[counts >= 10] == 10 * np.arange(1, 1 + (counts >= 10).sum())).all()
    assert (counts >= 10).sum() * 10 == pytest.approx(200, rel=0.3)
    with pytest.raises(UsageError, match="more than rate=1"):
        drawn("bursts:rate=1,size=10,every=2")


def test_urgent_requests_have_priority() -> None:
    assert float(drawn("poisson:rate=1,urgent=0.25", 4000).priority.mean()) == pytest.approx(0.25, abs=0.03)


def test_a_poisson_process_has_its_rate_whatever_the_lengths() -> None:
    at = drawn("poisson:rate=50,prompt=8,output=8", 4000, seed=3).at
    gaps = np.diff(at)
    assert at[0] == 0.0
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.1)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.1)  # an exponential's deviation is its mean
    assert (at == drawn("poisson:rate=50,prompt=10:99,output=1:9", 4000, seed=3).at).all()


def test_all_requests_arrive_at_once_with_an_infinite_rate() -> None:
    assert not drawn("poisson:rate=inf").at.any()


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    lines = [f"2023-11-16 18:15:{46 + k}.5000000,{100 + k},{10 + k}" for k in range(5)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    return path


def test_a_trace_is_replayed_at_the_given_speed_and_repeats_from_its_start(azure: Path) -> None:
    traffic = drawn(f"trace:{azure},scale=2", 7)
    assert traffic.at.tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3]
    assert traffic.prompt.tolist() == [100, 101, 102, 103, 104, 100, 101]
    assert traffic.new.tolist() == [10, 11, 12, 13, 14, 10, 11]
    assert traffic.rate == pytest.approx(2)


def test_a_trace_without_a_scale_is_replayed_at_the_rate_of_the_load(azure: Path) -> None:
    traffic = drawn(f"trace:{azure},load=0.5", 5, capacity=lambda prompt, new: 40.0)
    assert traffic.rate == pytest.approx(20)
    assert math.isclose(traffic.at[-1], 4 / 20)
