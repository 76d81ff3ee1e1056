"""The cost of a step, learnt from the steps that ran."""

from __future__ import annotations

import random

import pytest

from infeng_core.scheduling.cost import FIRST_MARGIN, KNOTS, MOST_MARGIN, CostModel, StepShape


def truth(shape: StepShape) -> float:
    """A machine that reads its weights in 30 ms and computes a row in 4."""
    slow = max(0, shape.rows - 6) * 0.004
    return 0.030 + slow + 0.0003 * shape.sampled + 2e-7 * shape.attended + 0.0005 * shape.adapters


def shapes(count: int, seed: int = 1) -> list[StepShape]:
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        decoding, chunk = rng.randint(1, 16), rng.choice([0, 0, 0, 16, 48, 128, 256])
        attended = decoding * rng.randint(50, 2000) + chunk * rng.randint(0, 1000)
        made.append(StepShape(decoding + chunk, decoding, attended, rng.randint(0, 4)))
    return made


def learnt(noise: float = 0.0, outliers: float = 0.0) -> CostModel:
    rng = random.Random(7)
    costs = CostModel()
    for shape in shapes(600):
        factor = 3.0 if rng.random() < outliers else max(0.1, rng.gauss(1.0, noise))
        costs.observe(shape, truth(shape) * factor)
    costs.fit()
    return costs


@pytest.mark.parametrize(("noise", "outliers", "error"), [(0.0, 0.0, 0.13), (0.1, 0.05, 0.16)])
def test_the_cost_model_predicts_unseen_steps(noise, outliers, error):
    costs = learnt(noise, outliers)
    off = sorted(abs(costs.seconds(shape) / truth(shape) - 1.0) for shape in shapes(200, seed=2))
    assert off[100] < error / 2
    assert off[190] < error
    assert all(value >= 0.0 for value in costs.coefficients.values())


@pytest.mark.parametrize("seconds", [0.001, 0.04, 0.05, 0.1, 0.7, 2.0])
@pytest.mark.parametrize("base", [StepShape(0, 0, 0), StepShape(1, 1, 10), StepShape(20, 20, 9000, 2)])
@pytest.mark.parametrize("position", [0, 3000])
def test_rows_within_a_time_are_exactly_as_many_as_fit(seconds, base, position):
    costs = learnt()

    def after(rows: int) -> float:
        seen = rows * position + rows * (rows + 1) // 2
        return costs.seconds(base._replace(rows=base.rows + rows, attended=base.attended + seen))

    rows = costs.rows_within(seconds, base, position, most=300)
    assert rows == 0 or after(rows) <= seconds + 1e-9
    assert rows == 300 or after(rows + 1) > seconds - 1e-9


def test_the_cost_model_predicts_nothing_before_steps():
    costs = CostModel()
    assert not costs.is_fitted
    assert costs.seconds(StepShape(5, 5, 5)) == 0.0
    assert costs.rows_within(0.1, StepShape(1, 1, 1), 0, 77) == 77
    assert costs.prompt_seconds(1000, 64) == 0.0


def test_steps_far_larger_than_any_seen_are_approached_gradually():
    costs = CostModel()
    for rows in range(1, 5):
        for _ in range(8):
            costs.observe(StepShape(rows, 1, 10), 0.030)
    assert costs.rows_within(0.1, StepShape(4, 4, 10), 0, 512) <= 2 * 4 + 2 * KNOTS[2]


def test_coefficients_reproduce_the_cost_model():
    costs = learnt()
    again = CostModel(costs.coefficients)
    assert [again.seconds(shape) for shape in shapes(20)] == [costs.seconds(shape) for shape in shapes(20)]
    assert costs.prompt_seconds(1000, 250) == pytest.approx(4 * costs.seconds(StepShape(250, 1, 31250)))


def test_the_margin_covers_nearly_all_steps_with_prompts():
    rng = random.Random(3)
    shape = StepShape(30, 4, 2000)
    costs = learnt()
    assert costs.margin < 1.1  # steps that take what is predicted
    for number in range(200):
        factor = 1.3 if number % 32 == 31 else rng.uniform(0.95, 1.05)
        costs.observe(shape, costs.seconds(shape) * factor)
    costs.fit()
    assert 1.1 < costs.margin <= 1.35
    before = costs.margin
    for _ in range(20):  # steps without prompts say nothing about it
        costs.observe(StepShape(4, 4, 400), 5 * costs.seconds(StepShape(4, 4, 400)))
    costs.fit()
    assert costs.margin == before


def test_the_margin_is_bounded_and_assumed_before_steps_were_observed():
    assert CostModel().margin == FIRST_MARGIN
    assert CostModel(dict.fromkeys(CostModel.names, 0.001)).margin == 1.0  # a given machine takes what is said
    costs = learnt()
    for _ in range(30):
        costs.observe(StepShape(30, 4, 2000), 9 * truth(StepShape(30, 4, 2000)))
    costs.fit()
    assert costs.margin == MOST_MARGIN
