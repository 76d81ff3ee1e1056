"""Popularity of adapters."""

import numpy as np
import pytest
from infeng_bench.load.traffic import choices, weights


def test_the_kth_adapter_weighs_one_over_k_plus_one_to_the_alpha() -> None:
    assert weights(3, 2.0) == pytest.approx([36 / 49, 9 / 49, 4 / 49])
    assert weights(2, 1.0) == pytest.approx([2 / 3, 1 / 3])
    assert sum(weights(16, 1.3)) == pytest.approx(1)


def test_draws_follow_the_weights_and_the_seed() -> None:
    drawn = choices(20000, 4, 1.3, False, seed=1)
    assert np.bincount(drawn) / 20000 == pytest.approx(weights(4, 1.3), abs=0.015)
    assert (drawn[:50] == choices(50, 4, 1.3, False, seed=1)).all()
    assert (drawn[:50] != choices(50, 4, 1.3, False, seed=2)).any()


def test_the_base_model_is_the_last_choice() -> None:
    drawn = choices(20000, 1, 1.0, True, seed=1)
    assert (drawn == 1).mean() == pytest.approx(1 / 3, abs=0.015)
    assert choices(1000, 2, 1.0, False, seed=1).max() == 1
    assert choices(3, 0, 1.0, False, seed=0).tolist() == [0] * 3


@pytest.mark.parametrize("alpha", [0.0, -1.0])
def test_without_an_alpha_adapters_take_turns(alpha: float) -> None:
    assert choices(5, 2, alpha, True, seed=9).tolist() == [0, 1, 2, 0, 1]
