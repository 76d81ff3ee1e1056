"""The numerical model of 8-bit integers: what quantize keeps, what it loses, and how the cache uses it."""

from __future__ import annotations

import numpy as np
import pytest
from infeng_numpy.cache import F32Cache, Int8Cache, slots_of
from infeng_numpy.rounding import quantize, round_activations, round_to_int8

SHAPE = {"layers": 2, "slots": 64, "kv_heads": 3, "head_dim": 20}


def sample(*shape: int) -> np.ndarray:
    return np.random.RandomState(5).standard_normal(shape)


def test_the_largest_of_a_group_is_127_steps_and_the_rest_is_within_half_a_step() -> None:
    x = sample(7, 64)
    q, scale = quantize(x)
    assert (np.abs(q).max(axis=1) == 127).all()
    np.testing.assert_allclose(scale[:, 0], np.abs(x).max(axis=1) / 127)
    assert (np.abs(q * scale - x) <= scale * 0.5000001).all()


def test_halves_are_rounded_to_even() -> None:
    q, scale = quantize(np.array([127.0, 0.5, 1.5, 2.5, -0.5, -1.5]))
    assert scale == 1
    assert q.tolist() == [127, 0, 2, 2, 0, -2]


@pytest.mark.parametrize("size", [0.0, 1e-31, 1e-40])
def test_a_group_of_nothing_is_zero(size: float) -> None:
    q, scale = quantize(np.full(8, size))
    assert not q.any()
    assert not scale.any()


def test_activations_have_a_scale_for_every_64_inputs() -> None:
    x = sample(3, 150)
    x[:, 64:128] *= 1000
    rounded = round_activations(x)
    for begin in (0, 64, 128):
        group = slice(begin, begin + 64)
        np.testing.assert_array_equal(rounded[:, group], round_to_int8(x[:, group]))


def test_a_cache_gives_back_what_was_put_in_to_its_precision() -> None:
    k, v = sample(5, 3, 20), sample(5, 3, 20) * 10
    slots = slots_of(np.array([2, 0], np.int32), np.array([0, 1, 15, 16, 17]), 16)
    assert slots.tolist() == [32, 33, 47, 0, 1]
    for kind, error in ((F32Cache, 1e-7), (Int8Cache, 0.5 / 127 + 1e-6)):
        cache = kind(**SHAPE)
        cache.append(1, slots, k, v)
        for put, got in zip((k, v), cache.read(1, slots), strict=True):
            assert (np.abs(got - put) <= error * np.abs(put).max(axis=-1, keepdims=True)).all()
        assert not cache.read(0, slots)[0].any()


def test_the_int8_cache_takes_a_quarter_of_the_memory_and_its_scales() -> None:
    assert Int8Cache(**SHAPE).nbytes == F32Cache(**SHAPE).nbytes // 4 + 2 * 2 * 64 * 3 * 4
