"""Popularity of adapters."""

import pytest
from infeng_bench.load.popularity import draw, weights


def test_the_kth_adapter_weighs_one_over_k_plus_one_to_the_alpha() -> None:
    assert weights(3, 2.0) == pytest.approx([36 / 49, 9 / 49, 4 / 49])
    assert weights(2, 1.0) == pytest.approx([2 / 3, 1 / 3])
    assert sum(weights(16, 1.3)) == pytest.approx(1)


def test_draws_follow_the_weights_and_the_seed() -> None:
    names = ["a", "b", "c", "d"]
    drawn = draw(20000, names, 1.3, False, seed=1)
    for name, weight in zip(names, weights(4, 1.3), strict=True):
        assert drawn.count(name) / 20000 == pytest.approx(weight, abs=0.015)
    assert drawn[:50] == draw(50, names, 1.3, False, seed=1)
    assert drawn[:50] != draw(50, names, 1.3, False, seed=2)


def test_the_base_model_is_the_last_choice() -> None:
    drawn = draw(20000, ["a"], 1.0, True, seed=1)
    assert drawn.count(None) / 20000 == pytest.approx(1 / 3, abs=0.015)
    assert None not in draw(1000, ["a", "b"], 1.0, False, seed=1)
    assert draw(3, [], 1.0, False, seed=0) == [None] * 3


@pytest.mark.parametrize("alpha", [0.0, -1.0])
def test_without_an_alpha_adapters_take_turns(alpha: float) -> None:
    assert draw(5, ["a", "b"], alpha, True, seed=9) == ["a", "b", None, "a", "b"]
