"""Rotary tables: the core's own exp, log, sin and cos against long double."""

import decimal

import numpy as np
import pytest

from infeng_core import _native as native

LONG = np.longdouble
EXTENDED = np.finfo(LONG).nmant >= 63


def ulps(value: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Distance in units of the last float32 place of the truth."""
    return np.abs(value.astype(LONG) - truth) / np.spacing(np.abs(truth).astype(np.float32)).astype(LONG)


@pytest.mark.skipif(not EXTENDED, reason="the truth needs an 80-bit or wider long double")
@pytest.mark.parametrize(("rot", "theta"), [(128, 10000.0), (64, 500000.0), (8, 1e6)])
def test_tables_are_rounded_correctly_up_to_131072_positions(rot: int, theta: float) -> None:
    frequency = native.rope_inv_freq(rot, theta).astype(np.float32)
    cos, sin = native.rope_tables(frequency, 131072)
    positions = np.r_[0:300, 1000:131072:97, 131071]
    angle = (positions[:, None].astype(np.float64) * frequency.astype(np.float64)).astype(LONG)
    assert cos.shape == sin.shape == (131072, rot // 2)
    assert cos.dtype == np.float32
    assert ulps(cos[positions], np.cos(angle)).max() <= 0.5001
    assert ulps(sin[positions], np.sin(angle)).max() <= 0.5001


def test_sine_near_multiples_of_pi_keeps_its_relative_accuracy() -> None:
    decimal.getcontext().prec = 60
    pi = decimal.Decimal("3.14159265358979323846264338327950288419716939937510582097494")
    for multiple in (1, 2, 113, 355, 1000, 104348 // 3):
        nearest = np.float32(float(pi * multiple / 64))  # 64 times this is as near to the multiple as float32 goes
        cos, sin = native.rope_tables(np.array([nearest], np.float32), 65)
        difference = decimal.Decimal(float(nearest)) * 64 - pi * multiple
        truth = difference - difference**3 / 6 + difference**5 / 120
        sign = -1 if multiple % 2 else 1
        assert abs(decimal.Decimal(float(sin[64, 0])) * sign / truth - 1) < decimal.Decimal(2) ** -24
        assert abs(decimal.Decimal(float(cos[64, 0])) * sign - (1 - difference**2 / 2)) < decimal.Decimal(2) ** -24


@pytest.mark.skipif(not EXTENDED, reason="the truth needs an 80-bit or wider long double")
@pytest.mark.parametrize("theta", [1.0, 2.0, 10000.0, 500000.0, 1e6, 1e12])
def test_inverse_frequencies_are_powers_of_theta(theta: float) -> None:
    got = native.rope_inv_freq(128, theta)
    truth = LONG(theta) ** (-LONG(2) * np.arange(64, dtype=LONG) / LONG(128))
    assert got[0] == 1.0
    assert np.abs(got / truth - 1).max() < 5e-15
    assert np.array_equal(got.astype(np.float32), truth.astype(np.float32))


def test_every_quadrant_and_position_zero() -> None:
    cos, sin = native.rope_tables(np.array([1.0, 0.0], np.float32), 7)
    assert np.array_equal(cos[0], [1, 1])
    assert np.array_equal(sin[0], [0, 0])
    assert np.all(cos[:, 1] == 1)
    assert np.allclose(cos[:, 0], np.cos(np.arange(7)), atol=1e-7)
    assert np.allclose(sin[:, 0], np.sin(np.arange(7)), atol=1e-7)
    assert native.rope_tables(np.array([1.0], np.float32), 0)[0].shape == (0, 1)


@pytest.mark.parametrize(("rot", "theta"), [(0, 1e4), (7, 1e4), (-2, 1e4), (8, 0.5), (8, float("nan"))])
def test_impossible_frequencies_are_refused(rot: int, theta: float) -> None:
    with pytest.raises(native.NativeError) as caught:
        native.rope_inv_freq(rot, theta)
    assert caught.value.code == "invalid_argument"


@pytest.mark.parametrize("frequency", [-1.0, float("nan"), float("inf"), 3e6])
def test_angles_beyond_the_reduction_are_refused(frequency: float) -> None:
    with pytest.raises(native.NativeError, match="angles must lie in"):
        native.rope_tables(np.array([frequency], np.float32), 4)
