"""The numerical model of 8-bit integers: what quantize keeps, what it loses, and how the cache uses it."""

from __future__ import annotations

import numpy as np
import pytest
from infeng_numpy.activations import Rounding, quantize, round_activations, round_shares, round_to_int8
from infeng_numpy.cache import CACHES, F32Cache, Int8Cache, slots_of
from infeng_numpy.codes import E4m3, Int4
from infeng_numpy.hadamard import hadamard, rotate, rotate_blocks, unrotated

from infeng_core.api import KernelError

SHAPE = {"layers": 2, "slots": 64, "kv_heads": 3, "head_dim": 20}


def sample(*shape: int) -> np.ndarray:
    return np.random.RandomState(5).standard_normal(shape)


def test_the_largest_value_of_a_group_is_127_steps_and_errors_are_half_a_step() -> None:
    x = sample(7, 64)
    q, scale = quantize(x)
    assert (np.abs(q).max(axis=1) == 127).all()
    np.testing.assert_allclose(scale[:, 0], np.abs(x).max(axis=1) / 127)
    assert (np.abs(q * scale - x) <= scale * 0.5000001).all()


def test_rounding_is_to_nearest_even() -> None:
    q, scale = quantize(np.array([127.0, 0.5, 1.5, 2.5, -0.5, -1.5]))
    assert scale == 1
    assert q.tolist() == [127, 0, 2, 2, 0, -2]


@pytest.mark.parametrize("size", [0.0, 1e-31, 1e-40])
def test_a_group_of_zeros_stays_zero(size: float) -> None:
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


def test_wide_groups_share_a_scale_and_a_rotation_is_inverted() -> None:
    x = sample(3, 192)
    x[:, 5] = 100
    np.testing.assert_array_equal(round_activations(x, Rounding(128))[:, :128], round_to_int8(x[:, :128]))
    np.testing.assert_allclose(rotate_blocks(rotate_blocks(x, 64), 64), x, rtol=0, atol=1e-10)
    errors = [np.abs(round_activations(x, Rounding(64, block)) - x)[:, :64].std() for block in (0, 64)]
    assert 0 < errors[1] < errors[0] / 3, "what stands out is spread"


def test_a_cache_returns_the_written_values_within_its_precision() -> None:
    k, v = sample(5, 3, 20), sample(5, 3, 20) * 10
    slots = slots_of(np.array([2, 0], np.int32), np.array([0, 1, 15, 16, 17]), 16)
    assert slots.tolist() == [32, 33, 47, 0, 1]
    for kind, error in ((F32Cache, 1e-7), (Int8Cache, 0.5 / 127 + 1e-6)):
        cache = kind(**SHAPE)
        cache.append(1, slots, k, v)
        for put, got in zip((k, v), cache.read(1, slots), strict=True):
            assert (np.abs(got - put) <= error * np.abs(put).max(axis=-1, keepdims=True)).all()
        assert not cache.read(0, slots)[0].any()


def test_the_int8_cache_needs_a_quarter_of_the_memory_plus_scales() -> None:
    assert Int8Cache(**SHAPE).nbytes == F32Cache(**SHAPE).nbytes // 4 + 2 * 2 * 64 * 3 * 4


@pytest.mark.parametrize("most", [255, 127])
def test_shares_times_scales_are_integers_up_to_the_largest_of_each_split(most: int) -> None:
    shares, scale = np.abs(sample(3, 300)), np.random.RandomState(6).standard_normal(300)
    scale = np.abs(scale) if most == 255 else scale
    scale[7] = 0
    shares[2, :256] = 0
    r = round_shares(shares, scale, most) * scale
    for split in (slice(0, 256), slice(256, 300)):
        step = np.abs(shares * scale)[:, split].max(axis=1, keepdims=True) / most
        assert (np.abs(r - shares * scale)[:, split] <= step * 0.5000001).all()
        steps = r[:2, split] / step[:2]
        np.testing.assert_allclose(steps, np.rint(steps), rtol=0, atol=1e-9)
        assert (np.rint(np.abs(steps).max(axis=1)) == most).all()
    assert not r[2, :256].any()


@pytest.mark.parametrize(
    ("plain", "shared"), [("int8", "int8i"), ("int8h", "int8hi"), ("k8v4h", "k8v4hi"), ("int4h", "int4hi")]
)
def test_a_cache_whose_values_are_added_in_integers_rounds_shares(plain: str, shared: str) -> None:
    caches = [CACHES[name](layers=1, slots=16, kv_heads=3, head_dim=16) for name in (plain, shared)]
    k, v, slots, shares = sample(9, 3, 16), sample(9, 3, 16), np.arange(9), np.abs(sample(2, 9))
    for cache in caches:
        cache.append(0, slots, k, v)
    for first, second in zip(*(cache.read(0, slots) for cache in caches), strict=True):
        np.testing.assert_array_equal(first, second)
    assert caches[0].shares(0, slots, shares, 1) is shares
    rounded = caches[1].shares(0, slots, shares, 1)
    assert 0 < np.abs(rounded - shares).max() < 0.01 * shares.max()


@pytest.mark.parametrize("size", [8, 24, 64, 80, 128])
def test_a_rotation_is_orthogonal_in_blocks_and_its_own_inverse(size: int) -> None:
    matrix, block = hadamard(size), size & -size
    np.testing.assert_array_equal(matrix @ matrix, block * np.eye(size))
    assert set(np.unique(matrix[:block, :block])) == {-1, 1}
    x = sample(5, size)
    np.testing.assert_allclose(unrotated(rotate(x)), x, rtol=0, atol=1e-14)


def test_4_bits_keep_the_largest_value_and_the_rest_within_half_a_step() -> None:
    x = sample(7, 21)
    codes, scale = Int4().encode(x)
    kept = Int4().decode(codes)[:, :21]
    assert codes.shape == (7, 16)
    largest = np.abs(x).argmax(axis=1)
    assert (kept[np.arange(7), largest] == -8).all()
    off = np.abs(kept * scale - x)
    assert (off[kept < 7] <= np.broadcast_to(np.abs(scale) * 0.5000001, x.shape)[kept < 7]).all()
    assert (off <= np.abs(scale) * 1.0000001).all()  # one that is as large with the other sign
    assert not Int4().decode(codes)[:, 21:].any()


def test_e4m3_has_the_values_of_its_standard_and_rounds_to_nearest() -> None:
    assert E4m3.numbers[[1, 7, 8, 15, 16, 126]].tolist() == [2**-17, 7 * 2**-17, 2**-14, 15 * 2**-17, 2**-13, 1.75]
    x = np.append(np.concatenate([E4m3.numbers, -E4m3.numbers]), 1.75)
    codes, scale = E4m3().encode(x)
    assert scale == 1
    np.testing.assert_array_equal(E4m3().decode(codes), x)
    middles = np.append((E4m3.numbers[1:] + E4m3.numbers[:-1]) / 2, 1.75)
    found = E4m3().encode(middles)[0][:-1]
    assert (found % 2 == 0).all()
    assert (np.abs(found - np.arange(126.0)) <= 1).all()


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("int8h", 0.5 / 127),
        ("k8v4h", 1 / 8),
        ("int4h", 1 / 8),
        ("fp8h", 1 / 16),
        ("int8hi", 0.5 / 127),
        ("k8v4hi", 1 / 8),
    ],
)
def test_a_rotated_cache_returns_the_written_values_within_its_precision(name: str, error: float) -> None:
    k, v = sample(5, 3, 64), sample(5, 3, 64) * 10
    k[..., 7] += 30  # a channel that stands out
    cache = CACHES[name](layers=2, slots=64, kv_heads=3, head_dim=64)
    cache.append(1, np.arange(5), k, v)
    for put, got in zip((k, v), cache.read(1, np.arange(5)), strict=True):
        largest = np.abs(rotate(put)).max(axis=-1, keepdims=True)
        assert (np.abs(rotate(got) - rotate(put)) <= error * largest * 1.00001).all()
    assert not cache.read(0, np.arange(5))[1].any()
    bytes_of_token = {"int8h": 128, "k8v4h": 96, "int4h": 64, "fp8h": 128, "int8hi": 128, "k8v4hi": 96}[name] + 8
    assert cache.nbytes == 2 * 64 * 3 * bytes_of_token


def test_a_rotated_cache_refuses_heads_of_partial_blocks() -> None:
    with pytest.raises(KernelError, match="multiple of 8 elements, not of 20"):
        CACHES["int4h"](**SHAPE)
