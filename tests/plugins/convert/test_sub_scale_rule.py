"""The quantization rule "intB-p32" of docs/numerics.md, repeated in NumPy: integers and scales are equal."""

import numpy as np
import pytest
from infeng_convert.interfaces.quantizers import QuantTarget
from infeng_convert.quantizers import Nearest
from numpy.typing import NDArray

from infeng_core.formats.quant import BUILTIN

F32 = np.float32
Floats = NDArray[np.float32]
GROUP = 32


def ratio(x: Floats, y: Floats, otherwise: float) -> Floats:
    return np.where(y == 0, F32(otherwise), x / np.where(y == 0, F32(1), y)).astype(F32)


def units(x: Floats, d: Floats, s: Floats, z: Floats, bits: int) -> Floats:
    """Return u; x is (n, groups, 32), the others (n, groups)."""
    low = np.maximum(z - np.floor(F32(128) / s), F32(0))
    high = np.minimum(z + np.floor(F32(127) / s), F32(2**bits - 1))
    by = ratio(np.ones_like(s), d * s, 0)
    return np.rint(np.clip(x * by[..., None] + z[..., None], low[..., None], high[..., None]))


def search(x: Floats, d: Floats, bits: int) -> tuple[Floats, Floats, Floats]:
    """Return s, z and the error of every group under the scales d, (n, groups)."""
    most, most_scale = F32(2**bits - 1), F32(2 ** (8 - bits))
    low, high = np.minimum(x.min(-1), F32(0)), np.maximum(x.max(-1), F32(0))
    best: list[Floats] = []

    def consider(s: Floats, z: Floats) -> None:
        off = x - (d * s)[..., None] * (units(x, d, s, z, bits) - z[..., None])
        error = np.zeros_like(s)
        for k in range(GROUP):
            error = error + off[..., k] * off[..., k]
        better = error < best[2] if best else np.ones(s.shape, bool)
        best[:] = [np.where(better, new, old) for new, old in zip((s, z, error), best or (s, z, error), strict=True)]

    for clip in (F32(1), F32(0.93), F32(0.86)):
        wanted = np.rint(np.clip(ratio((high - low) * clip, d * most, 1), F32(0), most_scale))
        for change in (F32(0), F32(-1), F32(1)):
            s = np.clip(wanted + change, F32(1), most_scale)
            consider(s, np.rint(np.clip(ratio(-low * clip, d * s, 0), F32(0), most)))
    s, z = best[:2]
    for change in (F32(-1), F32(1)):
        consider(s, np.where(d == 0, F32(0), np.clip(z + change, F32(0), most)))
    return best[0], best[1], best[2]


def nearest(w: Floats, bits: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Return d (n,), s and z (n, groups), u (n, groups, 32); padding takes part as zeros."""
    n, k = w.shape
    x = np.zeros((n, -(-k // 64) * 64), F32)
    x[:, :k] = w
    amax, x = np.abs(x).max(-1), x.reshape(n, -1, GROUP)
    groups = x.shape[1]
    tried = []
    for factor in (F32(1), F32(0.93), F32(0.86), F32(0.8)):
        d = np.where(amax < F32(2.0**-100), F32(0), amax / F32(127) * factor)
        s, z, error = search(x, np.repeat(d[:, None], groups, 1), bits)
        tried.append((d, s, z, np.add.accumulate(error.astype(np.float64), 1)[:, -1]))
    won = np.argmin([total for *_, total in tried], 0)  # the first among equals
    d, s, z = (np.stack([one[i] for one in tried], 1)[np.arange(n), won] for i in range(3))
    steps = s[..., None] * (units(x, np.repeat(d[:, None], groups, 1), s, z, bits) - z[..., None])
    exact, whole = x.reshape(n, -1).astype(np.float64), steps.reshape(n, -1).astype(np.float64)
    xw, ww = np.add.accumulate(exact * whole, 1)[:, -1], (whole * whole).sum(1)
    d = np.where((d != 0) & (xw > 0), xw / np.where(ww == 0, 1, ww), d).astype(F32)
    return d, s, z, units(x, np.repeat(d[:, None], groups, 1), s, z, bits)


@pytest.mark.parametrize("bits", [4, 5, 6])
@pytest.mark.parametrize(("n", "k"), [(37, 328), (1, 8), (16, 1088)])
def test_chosen_codes_and_scales_follow_the_rule(bits: int, n: int, k: int) -> None:
    rng = np.random.default_rng(n + bits)
    w = (rng.standard_normal((n, k)) * np.exp2(rng.integers(-6, 4, (n, k // 8)).repeat(8, 1))).astype(F32)
    if n > 10:
        w[0] = 0
        w[1] *= F32(2.0**-110)  # counts as zero
        w[2] = np.abs(w[2])
        w[3] -= 40
        w[4] = rng.standard_t(2, k)  # heavy tails
        w[5] = rng.integers(-8, 8, k)  # ties
        w[6, : k // 2] = 0
        w[7] *= F32(2.0**60)  # squares beyond f32
        w[8] *= F32(2.0**-80)
    format = f"int{bits}-p32"
    grid = BUILTIN[format].grid(k)
    assert grid is not None
    made = Nearest().quantize(w, QuantTarget("w", "w", format, grid))
    with np.errstate(over="ignore", under="ignore"):
        d, s, z, u = nearest(w, bits)
    groups = -(-k // GROUP)
    assert made.sub_scales is not None and made.zeros is not None
    assert np.array_equal(made.scales.ravel().view(np.uint32), d.view(np.uint32))
    assert np.array_equal(made.sub_scales, s[:, :groups])
    assert np.array_equal(made.zeros, z[:, :groups])
    assert np.array_equal(made.codes, u.reshape(n, -1)[:, :k])
