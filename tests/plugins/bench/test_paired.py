"""What interleaved pairs say, against cases that are known from tables of the sign test."""

import random
import statistics
from math import comb

import pytest
from infeng_bench.stats import paired


@pytest.mark.parametrize(
    ("count", "place"),  # place of the lower bound from below, counted from 1: tables of the one-sided sign test at 5%
    [(5, 1), (7, 1), (8, 2), (10, 2), (11, 3), (13, 4), (20, 6), (25, 8), (30, 11), (50, 19)],
)
def test_the_lower_bound_is_the_order_statistic_of_the_sign_test(count: int, place: int) -> None:
    values = list(range(1, count + 1))
    random.Random(0).shuffle(values)
    bound = paired.lower_bound(values)
    assert bound.value == place
    assert bound.confidence >= 0.95
    assert bound.confidence == pytest.approx(1 - sum(comb(count, i) for i in range(place)) / 2**count)


@pytest.mark.parametrize(("count", "confidence"), [(1, 0.5), (2, 0.75), (3, 0.875), (4, 0.9375)])
def test_too_few_pairs_report_the_confidence_of_their_minimum(count: int, confidence: float) -> None:
    assert paired.lower_bound([3.0, 2.0, 5.0, 4.0][:count]) == paired.Bound(
        min([3.0, 2.0, 5.0, 4.0][:count]), confidence
    )


def test_the_bound_holds_with_its_stated_confidence() -> None:
    rng = random.Random(7)
    samples = [[rng.expovariate(1.0) for _ in range(20)] for _ in range(4000)]
    held = statistics.fmean(paired.lower_bound(values).value <= 0.6931 for values in samples)
    assert 0.965 < held < 0.99  # the sixth of twenty: 0.979


def test_without_measurements_there_is_no_bound() -> None:
    with pytest.raises(ValueError, match="no values"):
        paired.lower_bound([])


def test_ratios_are_computed_per_pair() -> None:
    assert paired.ratios([10.0, 30.0, 20.0], [5.0, 10.0, 20.0]) == [2.0, 3.0, 1.0]


def test_unpaired_or_nonpositive_times_are_refused() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        paired.ratios([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="above 0"):
        paired.ratios([1.0, 2.0], [1.0, 0.0])


def test_a_pair_below_half_an_engines_median_is_named() -> None:
    assert paired.starved([[10, 10, 10, 4.9], [1, 0.4, 1, 1]]) == [1, 3]
    assert paired.starved([[10, 10, 5], [1, 1, 1]]) == []


def test_the_upper_bound_mirrors_the_lower_bound() -> None:
    bound = paired.upper_bound([float(value) for value in range(1, 21)])
    assert bound == paired.Bound(15, paired.lower_bound(range(1, 21)).confidence)
    assert paired.upper_bound([3.0, 2.0]) == paired.Bound(3.0, 0.75)
