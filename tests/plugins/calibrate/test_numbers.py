"""Moments, factors, scales and codes are those of plain NumPy, in equal bits for every number of threads."""

import numpy as np
import pytest
from infeng_calibrate import _native
from infeng_calibrate.gptq import Gptq
from infeng_convert.interfaces.quantizers import Quantized, QuantTarget
from infeng_convert.quantizers import Nearest

from infeng_core.formats.quant import BUILTIN


def moments(k: int, rows: int = 700) -> np.ndarray:
    random = np.random.default_rng(k)
    mixed = random.standard_normal((rows, k)) + 2 * random.standard_normal((rows, 1))  # inputs that go together
    x = mixed.astype(np.float32)
    h = np.zeros((k, k))
    _native.add_gram(x, h, 2)
    full = np.triu(h) + np.triu(h, 1).T
    full[np.diag_indices(k)] += 0.01 * np.mean(np.diag(full))
    return full / rows


def in_twelve_bits(x: np.ndarray) -> np.ndarray:
    """What columns are rounded to, a scale for each 512 rows."""
    made = np.zeros(x.shape)
    for begin in range(0, len(x), 512):
        block = x[begin : begin + 512]
        most = np.abs(block).max(axis=0)
        by = np.where(most < 2.0**-100, np.float32(0), np.float32(2047) / np.maximum(most, np.float32(2.0**-100)))
        made[begin : begin + 512] = np.rint(block * by) * (most.astype(np.float64) / 2047)
    return made


@pytest.mark.parametrize("k", [1, 15, 16, 17, 100, 600])
def test_moments_are_the_sums_of_products(k):
    x = np.random.default_rng(0).standard_normal((1100, k)).astype(np.float32)
    x[:, k // 2] *= np.float32(2.0**-110)
    x[::7, -1] *= 1000  # and its other values are next to nothing
    made = [np.zeros((k, k)) for _ in range(2)]
    for threads, h in enumerate(made, 1):
        _native.add_gram(x, h, threads)
    assert np.array_equal(made[0], made[1])
    rounded, exact = in_twelve_bits(x), x.astype(np.float64)
    assert np.allclose(np.triu(made[0]), np.triu(rounded.T @ rounded), rtol=1e-12, atol=1e-12)
    size = np.sqrt(np.outer(*[(exact**2).sum(axis=0)] * 2))
    assert np.all(np.abs(made[0] - np.triu(exact.T @ exact)) <= 1e-3 * size + 1e-12)
    assert not np.tril(made[0], -1).any()


def test_moments_of_a_column_that_is_not_finite_are_nan():
    x = np.ones((600, 3), np.float32)
    x[7, 1], h = np.inf, np.zeros((3, 3))
    _native.add_gram(x, h)
    assert np.isnan(h[1, 1:]).all() and np.isnan(h[0, 1])
    assert h[0, 0] == h[0, 2] == h[2, 2] == pytest.approx(600)


def test_moments_of_parts_at_block_boundaries_add_up_exactly():
    x = np.random.default_rng(1).standard_normal((4500, 40)).astype(np.float32)
    whole, parts = np.zeros((40, 40)), np.zeros((40, 40))
    _native.add_gram(x, whole)
    for begin in (0, 2048, 4096):
        _native.add_gram(np.ascontiguousarray(x[begin : begin + 2048]), parts)
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize(("m", "k"), [(1, 1), (17, 40), (100, 16)])
def test_cross_moments_are_the_sums_of_products(m, k):
    rng = np.random.default_rng(8)
    y, x = (rng.standard_normal((513, size)).astype(np.float32) for size in (m, k))
    made = [np.zeros((m, k)) for _ in range(2)]
    for threads, c in enumerate(made, 1):
        _native.add_cross(y, x, c, threads)
    assert np.array_equal(made[0], made[1])
    assert np.allclose(made[0], in_twelve_bits(y).T @ in_twelve_bits(x), rtol=1e-12, atol=1e-9)


def test_values_of_other_rows_than_the_inputs_are_refused():
    with pytest.raises(_native.NativeError, match="another shape"):
        _native.add_cross(np.ones((3, 2), np.float32), np.ones((4, 2), np.float32), np.zeros((2, 2)))


@pytest.mark.parametrize("group", [64, 128, 256])
def test_inputs_are_rounded_by_the_definition_in_equal_bits(group):
    rng = np.random.default_rng(6)
    x = (rng.standard_normal((70, 150)) * np.exp2(rng.integers(-20, 20, (70, 1)))).astype(np.float32)
    x[3], x[4, :64], x[5] = 0, 2.0**-101, 1.0
    padded = np.zeros((70, -(-150 // group), group), np.float32)
    padded.reshape(70, -1)[:, :150] = x
    amax = np.abs(padded).max(axis=2, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.clip(np.rint(padded * (np.float32(127) / amax)), -127, 127)
    exact = np.where(amax >= 2.0**-100, q * (amax / np.float32(127)), np.float32(0)).reshape(70, -1)[:, :150]
    for threads in (1, 2):
        assert np.array_equal(_native.round_inputs(x, group, threads), exact)


@pytest.mark.parametrize("k", [1, 7, 64, 65, 130, 300])
def test_the_factors_multiply_to_the_matrix(k):
    h = moments(k)
    made = [h.copy() for _ in range(2)]
    for threads, a in enumerate(made, 1):
        _native.factor(a, threads)
    assert np.array_equal(np.tril(made[0]), np.tril(made[1]))
    lower, diagonal = np.tril(made[0], -1) + np.eye(k), np.diag(made[0])
    assert np.allclose(lower @ np.diag(diagonal) @ lower.T, h, rtol=0, atol=1e-12 * np.abs(h).max())


def test_a_matrix_that_is_not_positive_definite_is_refused_by_its_column():
    h = moments(70)
    h[66, 66] = -1
    with pytest.raises(_native.NativeError, match=r"column 66: the matrix is not positive definite"):
        _native.factor(h)


def test_codes_follow_the_definition_and_lose_less_than_rounding():
    n, k, group = 21, 150, 32
    h, w = moments(k), np.random.default_rng(2).standard_normal((n, k)).astype(np.float32)
    order = np.argsort(-np.diag(h), kind="stable").astype(np.int32)
    last_first = order[::-1]
    factors = np.ascontiguousarray(h[np.ix_(last_first, last_first)])
    _native.factor(factors)
    scales = _native.choose_scales(w, np.ascontiguousarray(np.diag(h)), group, -8, 7, True)
    low, high = np.full(scales.shape, -8, np.int8), np.full(scales.shape, 7, np.int8)
    made = [_native.choose_codes(w, order, factors, scales, low, high, group, threads) for threads in (1, 2)]
    assert np.array_equal(made[0], made[1])
    steps = np.repeat(scales, group, axis=1)[:, :k].astype(np.float64)
    expected, errors = np.zeros((n, k), np.int8), np.zeros((n, k))
    for j in reversed(range(k)):
        i = last_first[j]
        value = w[:, i] + errors[:, j + 1 :] @ factors[j + 1 :, j]
        expected[:, i] = np.clip(np.rint(value / steps[:, i]), -8, 7)
        errors[:, j] = w[:, i] - steps[:, i] * expected[:, i]
    assert np.mean(made[0] != expected) < 1e-3  # the sums are in another order
    rounded = np.clip(np.rint(w / steps), -8, 7)

    def loss(codes: np.ndarray) -> float:
        error = w - steps * codes
        return float(np.einsum("ni,ij,nj->", error, h, error))

    assert loss(made[0]) < 0.9 * loss(rounded)


def test_scales_depend_on_the_loss_per_error():
    """A large weight of an input that is hardly there does not widen the steps of the others."""
    w = np.random.default_rng(3).uniform(-1, 1, (50, 8)).astype(np.float32)
    w[:, 7] = 1.3
    costs = np.array([1.0] * 7 + [1e-6])
    errors = []
    for weight in (np.ones(8), costs):
        steps = _native.choose_scales(w, weight, 8, -8, 7, False)
        errors.append((costs * (w - steps * np.clip(np.rint(w / steps), -8, 7)) ** 2).sum())
    assert errors[1] < 0.8 * errors[0]


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_group_of_zeros_has_the_scale_zero(zero):
    made = _native.choose_scales(np.full((1, 8), zero, np.float32), np.ones(8), 8, -8, 7, True)
    assert made.tolist() == [[0.0]]


@pytest.mark.parametrize(("n", "k"), [(1, 1), (8, 4), (37, 150)])
def test_aimed_weights_correct_the_drift_of_inputs(n, k):
    h, rng = moments(k), np.random.default_rng(9)
    w, drift = rng.standard_normal((n, k)).astype(np.float32), 0.1 * rng.standard_normal((k, k))
    order = np.argsort(-np.diag(h), kind="stable").astype(np.int32)
    factors = np.ascontiguousarray(h[np.ix_(order[::-1], order[::-1])])
    _native.factor(factors)
    made = [_native.aim(w, drift, order, factors, threads) for threads in (1, 2)]
    assert np.array_equal(made[0], made[1])
    exact = w + np.linalg.solve(h, (w.astype(np.float64) @ drift).T).T
    assert np.allclose(made[0], exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("order", [[0, 0, 1], [0, 1, 3], [-1, 0, 1]])
def test_an_order_other_than_a_permutation_is_refused(order):
    one = np.ones((1, 1), np.float32)
    codes = np.ones((1, 1), np.int8)
    with pytest.raises(_native.NativeError, match="no permutation"):
        _native.choose_codes(np.ones((1, 3), np.float32), np.array(order, np.int32), np.eye(3), one, -codes, codes, 3)


def test_a_lowest_code_above_the_highest_is_refused():
    one, order = np.ones((1, 1), np.float32), np.arange(3, dtype=np.int32)
    codes = np.ones((1, 1), np.int8)
    with pytest.raises(_native.NativeError, match="lowest code is above"):
        _native.choose_codes(np.ones((1, 3), np.float32), order, np.eye(3), one, codes, -codes, 3)


# ------------------------------------------------------------------------------------------- with integer sub-scales

FACTORS = np.array([1, 0.93, 0.86, 0.8], np.float32)


def loss_of(w: np.ndarray, cost: np.ndarray, step: float, low: int, high: int) -> float:
    """The weighted error of a group, added as the definition says: 8 lanes, then a tree."""
    by = 0.0 if step == 0 else 1 / step
    error = w - step * np.rint(np.clip(w * by, low, high))
    lanes = [0.0] * 8
    for i, term in enumerate(cost * error * error):
        lanes[i % 8] += term
    for half in (4, 2, 1):
        lanes = [lanes[j] + lanes[j + half] for j in range(half)]
    return lanes[0]


def best_of_group(w: np.ndarray, cost: np.ndarray, d: np.float32, bits: int) -> tuple[float, int, int]:
    most, most_scale = 2**bits - 1, 2 ** (8 - bits)
    best = (np.inf, 1, 0)

    def consider(s: int, z: int) -> None:
        nonlocal best
        step = float(d * np.float32(s))
        found = loss_of(w, cost, step, max(-z, -(128 // s)), min(most - z, 127 // s))
        if found < best[0]:
            best = (found, s, z)

    low, high = min(0.0, w.min()), max(0.0, w.max())
    for clip in (1.0, 0.93, 0.86):
        wanted = int(np.rint(np.clip((high - low) * clip / (float(d) * most), 0, most_scale)))
        for change in (0, -1, 1):
            s = int(np.clip(wanted + change, 1, most_scale))
            consider(s, int(np.rint(np.clip(-low * clip / float(d * np.float32(s)), 0, most))))
    _, s, z = best
    for change in (-1, 1):
        consider(s, int(np.clip(z + change, 0, most)))
    return best


@pytest.mark.parametrize("bits", [4, 5, 6])
def test_sub_scales_follow_the_definition(bits):
    n, k = 6, 150
    rng = np.random.default_rng(bits)
    w = (rng.standard_normal((n, k)) * np.exp2(rng.integers(-6, 3, (n, k // 5)).repeat(5, 1))).astype(np.float32)
    w[1] += 2  # all on one side
    w[2] = 0
    cost = rng.uniform(0.01, 3, k)
    made = [_native.choose_sub_scales(w, cost, bits, threads) for threads in (1, 2)]
    for one, two in zip(*made, strict=True):
        assert np.array_equal(one, two)
    padded, costs = np.zeros((n, 160)), np.zeros(160)
    padded[:, :k], costs[:k] = w, cost
    for row in range(n):
        tried = []
        for factor in FACTORS if row != 2 else ():
            d = np.abs(w[row]).max() / np.float32(127) * factor
            groups = [
                best_of_group(padded[row, at : at + 32], costs[at : at + 32], d, bits) for at in range(0, 160, 32)
            ]
            tried.append((sum(found for found, _, _ in groups), d, [s for _, s, _ in groups], [z for *_, z in groups]))
        _, d, s, z = min(tried, key=lambda one: one[0]) if tried else (0, 0.0, [1] * 5, [0] * 5)
        assert (made[0][0][row, 0], made[0][1][row].tolist(), made[0][2][row].tolist()) == (d, s, z)


def test_the_refitted_scale_loses_least_and_an_unfittable_one_stays():
    n, k = 7, 75
    h = moments(k)
    w = np.random.default_rng(4).standard_normal((n, k)).astype(np.float32)
    q = np.rint(w * 20).astype(np.int8)
    q[3], w[4] = 0, -w[4]  # nothing to fit, and what a negative scale would fit
    made = []
    for threads in (1, 2):
        d = np.full((n, 1), 0.01, np.float32)
        _native.refit_scales(w, q, h, d, threads)
        made.append(d)
    assert np.array_equal(*made)
    exact = np.einsum("ni,ij,nj->n", w, h, q) / np.maximum(np.einsum("ni,ij,nj->n", q * 1.0, h, q * 1.0), 1e-30)
    exact[[3, 4]] = 0.01
    assert np.allclose(made[0][:, 0], exact, rtol=1e-5)


def start_of_descent(n: int, k: int, bits: int) -> tuple[np.ndarray, ...]:
    """Weights, moments, damping, and what was chosen for them: d, s, z and u - z by rounding."""
    h, w = moments(k), np.random.default_rng(7).standard_normal((n, k)).astype(np.float32)
    w[0, :40] *= 30  # at the edge of what 8 bits hold
    d, s, z = _native.choose_sub_scales(w, np.ascontiguousarray(np.diag(h)), bits)
    wide, zero = (np.repeat(x, 32, 1)[:, :k].astype(int) for x in (s, z))
    low, high = np.maximum(-zero, -(128 // wide)), np.minimum(2**bits - 1 - zero, 127 // wide)
    return w, h, 0.01 * np.diag(h).mean(), d, s, z, np.clip(np.rint(w / (d * wide)), low, high).astype(np.int8)


def row_losses(w: np.ndarray, h: np.ndarray, d: np.ndarray, s: np.ndarray, q: np.ndarray) -> np.ndarray:
    error = w - d.astype(float) * np.repeat(s, 32, 1)[:, : w.shape[1]] * q
    return np.einsum("ni,ij,nj->n", error, h, error)


def descended_group(
    w: np.ndarray, h: np.ndarray, d: float, chosen: tuple[np.ndarray, np.ndarray, np.ndarray], at: int, bits: int
) -> None:
    """Choose one row's group again, in place, by the definition."""
    s, z, q = chosen
    here, most, most_scale = slice(32 * at, 32 * at + 32), 2**bits - 1, 2 ** (8 - bits)
    error = w - d * np.repeat(s, 32)[: len(w)] * q
    lower = np.linalg.cholesky(h[here, here])
    pivot, lower = np.diag(lower) ** 2, lower / np.diag(lower)
    y = np.linalg.solve(lower, h[here] @ error) / pivot
    best, before = (pivot * y**2).sum() * (1 - 2.0**-16), (int(s[at]), int(z[at]))
    wanted = w[here] + y - lower.T @ error[here]
    for change in (0, -1, 1):
        for shift in (0, -1, 1):
            scale = int(np.clip(before[0] + change, 1, most_scale))
            zero = int(np.clip((2 * before[0] * before[1] + scale) // (2 * scale) + shift, 0, most))
            low, high = max(-zero, -(128 // scale)), min(most - zero, 127 // scale)
            value, codes, loss = wanted.copy(), np.zeros(len(wanted)), 0.0
            for j in reversed(range(len(wanted))):
                codes[j] = np.rint(np.clip(value[j] / (d * scale), low, high))
                loss += pivot[j] * (value[j] - d * scale * codes[j]) ** 2
                value[:j] += (w[here][j] - d * scale * codes[j]) * lower[j, :j]
            if loss < best:
                best = loss
                s[at], z[at], q[here] = scale, zero, codes


@pytest.mark.parametrize("bits", [4, 6])
def test_descent_follows_the_definition_and_no_row_loses_more(bits):
    n, k = 11, 75
    w, h, damping, d, s, z, q = start_of_descent(n, k, bits)
    before = row_losses(w, h + damping * np.eye(k), d, s, q)
    expected, made = [], []
    for row in range(n):
        chosen = s[row].copy(), z[row].copy(), q[row].copy()
        for group in range(3):
            descended_group(w[row].astype(float), h + damping * np.eye(k), float(d[row, 0]), chosen, group, bits)
        expected.append(np.concatenate(chosen))
    for threads in (1, 2):
        parts = s.copy(), z.copy(), q.copy()
        _native.descend(w, h, damping, d, *parts, bits, threads)
        made.append(parts)
    for one, two in zip(*made, strict=True):
        assert np.array_equal(one, two)
    s, z, q = made[0]
    differing = (np.concatenate(made[0], axis=1) != np.array(expected)).any(axis=1)
    assert differing.sum() <= 1  # what one rounding decides in binary32 or binary64, a whole row may follow
    after = row_losses(w, h + damping * np.eye(k), d, s, q)
    assert (after <= before * (1 + 1e-5)).all()
    assert after[1:].sum() < 0.8 * before[1:].sum()  # the first row, most of which is at its bounds, outweighs them
    steps, codes = np.repeat(s, 32, 1)[:, :k].astype(int) * q, np.repeat(z, 32, 1)[:, :k].astype(int) + q
    assert steps.min() >= -128 and steps.max() <= 127 and codes.min() >= 0 and codes.max() < 2**bits


def test_rows_of_zeros_and_optimal_codes_stay():
    n, k = 3, 64
    w, h, damping, d, s, z, q = start_of_descent(n, k, 4)
    w[1], d[1], s[1], z[1], q[1] = 0, 0, 1, 0, 0
    w[2] = d[2] * np.repeat(s[2], 32) * q[2]
    parts = s.copy(), z.copy(), q.copy()
    _native.descend(w, h, damping, d, *parts, 4)
    for before, after in zip((s, z, q), parts, strict=True):
        assert np.array_equal(before[1:], after[1:])


def test_sub_scales_out_of_range_are_refused():
    w, h, damping, d, s, z, q = start_of_descent(2, 32, 4)
    for bad in ((s * 0, z), (s, z * 0 + 16)):
        with pytest.raises(_native.NativeError, match="out of range"):
            _native.descend(w, h, damping, d, *bad, q, 4)


def test_calibrated_units_lose_less_than_rounded_ones_and_fit_into_eight_bits():
    n, k = 24, 200
    h, w = moments(k), np.random.default_rng(5).standard_normal((n, k)).astype(np.float32)
    w[:, 40:70] *= 20  # groups at the edge of what 8 bits hold
    for name in ("int4-p32", "int5-p32", "int6-p32"):
        grid = BUILTIN[name].grid(k)
        target = QuantTarget("w", "layers.0.o_proj", name, grid, h)
        made = [Gptq(threads).quantize(w.copy(), target) for threads in (1, 2)]
        rounded = Nearest().quantize(w.copy(), target)
        for part in ("codes", "scales", "zeros", "sub_scales"):
            assert np.array_equal(getattr(made[0], part), getattr(made[1], part))

        def values(one: Quantized) -> tuple[np.ndarray, np.ndarray]:
            wide, zero = (np.repeat(x, 32, 1)[:, :k].astype(int) for x in (one.sub_scales, one.zeros))
            steps = wide * (one.codes - zero)
            return steps, one.scales.astype(float) * steps

        def loss(one: Quantized) -> float:
            error = w - values(one)[1]
            return float(np.einsum("ni,ij,nj->", error, h, error))

        steps, _ = values(made[0])
        assert steps.min() >= -128 and steps.max() <= 127 and made[0].codes.max() <= grid.high
        assert loss(made[0]) < 0.75 * loss(rounded), name
        fitted = np.einsum("ni,ij,nj->n", w, h, steps) / np.einsum("ni,ij,nj->n", steps, h, steps)
        assert np.allclose(made[0].scales[:, 0], fitted, rtol=1e-5)  # no other scale of these integers loses less


@pytest.mark.parametrize("bits", [3, 7])
def test_codes_of_other_sizes_are_refused(bits):
    with pytest.raises(_native.NativeError, match=f"codes of {bits} bits"):
        _native.choose_sub_scales(np.ones((1, 32), np.float32), np.ones(32), bits)
