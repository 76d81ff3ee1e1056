"""Intervals and tests against closed forms."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

pytest.importorskip("infeng_quality", reason="the quality wheel is not installed")

from infeng_quality.statistics import (
    binomial_two_sided,
    block_tokens,
    bootstrap,
    join_blocks,
    mcnemar,
    tost,
)
from infeng_quality.tasks.verb import wilson


def test_the_bootstrap_interval_of_normal_blocks_is_the_normal_interval() -> None:
    blocks, spread = 400, 0.3
    values = np.random.default_rng(1).normal(0.5, spread, blocks)
    [found] = bootstrap(values[:, None], np.ones(blocks), seed=2)
    half = 1.96 * values.std(ddof=1) / math.sqrt(blocks)
    assert found.value == pytest.approx(values.mean(), rel=1e-12)
    assert found.low == pytest.approx(values.mean() - half, abs=0.06 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.06 * half)


def test_the_bootstrap_interval_covers_the_mean_of_normal_blocks_95_times_in_100() -> None:
    random = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        counts = random.integers(50, 150, 60).astype(np.float64)
        sums = random.normal(0.2 * counts, np.sqrt(counts))  # of so many tokens of mean 0.2 and variance 1
        [found] = bootstrap(sums[:, None], counts, resamples=400, seed=4)
        held += found.low <= 0.2 <= found.high
    assert 0.89 <= held / 200 <= 0.985  # three standard errors about 0.94, which 60 blocks give


def test_joining_many_blocks_changes_the_interval_by_chance_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(8).normal(size=(3001, 1))
    [joined] = bootstrap(values, np.ones(3001), resamples=1000)
    monkeypatch.setattr("infeng_quality.statistics.MOST_BLOCKS", 10_000)
    [apart] = bootstrap(values, np.ones(3001), resamples=1000)
    assert joined.value == pytest.approx(apart.value, rel=1e-9)
    assert joined.high - joined.low == pytest.approx(apart.high - apart.low, rel=0.15)


def test_resampling_keeps_pairs_together() -> None:
    random = np.random.default_rng(5)
    noise = random.normal(0, 10, 200)  # which both models share
    [difference] = bootstrap((noise + 0.01 - noise)[:, None], np.ones(200))
    assert difference.high - difference.low < 1e-9
    one, other = bootstrap(np.column_stack([noise, noise + 0.01]), np.ones(200))
    assert other.low - one.low == pytest.approx(0.01)
    assert one.high - one.low > 1


def test_the_bootstrap_depends_on_its_seed_and_not_on_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    sums, counts = np.random.default_rng(6).normal(size=(30, 2)), np.full(30, 7.0)
    first = bootstrap(sums, counts, seed=1)
    assert bootstrap(sums, counts, seed=1) == first != bootstrap(sums, counts, seed=2)
    monkeypatch.setattr("infeng_quality.statistics.CELLS", 100)
    for one, again in zip(first, bootstrap(sums, counts, seed=1), strict=True):
        assert again.low == pytest.approx(one.low, rel=1e-12)


def test_equal_blocks_have_an_interval_of_one_point_and_one_block_has_none() -> None:
    counts = np.array([3.0, 7.0, 11.0])
    [found] = bootstrap((0.1 * counts)[:, None] * 0, counts)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="1 blocks"):
        bootstrap(np.ones((1, 1)), np.ones(1))


def test_blocks_join_neighbours_up_to_the_least_number_of_tokens() -> None:
    assert join_blocks(np.array([5, 5, 20, 1, 1, 8, 2]), 10).tolist() == [0, 0, 1, 2, 2, 2, 2]
    assert join_blocks(np.array([3]), 10).tolist() == [0]
    assert join_blocks(np.array([10, 10, 3]), 10).tolist() == [0, 1, 1]
    assert [block_tokens(total) for total in (5, 5000, 10**6)] == [1, 50, 1024]


@pytest.mark.parametrize("count", range(9))
def test_mcnemars_p_is_the_exact_binomial_one(count: int) -> None:
    for fewer in range(count // 2 + 1):
        ways = [sum(coins) for coins in product((0, 1), repeat=count)]
        extreme = sum(min(heads, count - heads) <= fewer for heads in ways)
        assert binomial_two_sided(fewer, count) == pytest.approx(float(Fraction(extreme, len(ways))))


def test_mcnemar_counts_the_questions_that_one_model_alone_solved() -> None:
    first = np.array([1, 1, 1, 0, 0, 1, 1, 1, 1, 1], bool)
    second = np.array([1, 0, 0, 1, 0, 0, 0, 0, 0, 0], bool)
    found = mcnemar(first, second)
    assert (found.gained, found.lost) == (1, 7)
    assert found.p == pytest.approx(2 * (1 + 8) / 256)
    assert mcnemar(first, first).p == 1.0


def test_equivalence_needs_questions_even_where_no_answer_differs() -> None:
    few, many = np.ones(30, bool), np.ones(4000, bool)
    assert not tost(few, few, 0.01).is_resolved
    same = tost(many, many, 0.01)
    assert same.is_resolved
    assert same.difference.low < 0 < same.difference.high < 0.001
    with pytest.raises(ValueError, match="no items"):
        tost(few[:0], few[:0], 0.01)


def test_the_margin_of_gsm8k_and_humaneval_is_wider_than_a_thousandth() -> None:
    random = np.random.default_rng(7)
    for questions in (164, 1319):
        first = random.random(questions) < 0.5
        second = np.where(random.random(questions) < 0.04, ~first, first)
        assert not tost(first, second, 0.003).is_resolved


def test_a_proportion_has_wilsons_interval() -> None:
    found = wilson(10, 100)  # Agresti and Coull (1998) give 0.055 to 0.174
    assert (round(found["low"], 3), round(found["high"], 3)) == (0.055, 0.174)
    assert wilson(0, 20)["low"] == 0.0
    assert wilson(20, 20)["high"] == 1.0
