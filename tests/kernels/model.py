"""docs/numerics.md in NumPy, with every rounding where the page puts it: results equal a kernel's byte for byte.

A fused multiply-add is computed in double, with the rounding error of the sum folded into its last bit (round to odd),
so that rounding to float32 afterwards is exact (Boldo, Melquiond: "Emulation of a FMA and correctly rounded sums").
"""

from __future__ import annotations

import numpy as np
from goldens import panels
from numpy.typing import ArrayLike, NDArray

F32 = NDArray[np.float32]
Activation = tuple[NDArray[np.int8], F32, NDArray[np.int32]]

f32 = np.float32


def fma(a: ArrayLike, b: ArrayLike, c: ArrayLike) -> F32:
    """Return a * b + c of float32 values, rounded once."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)  # 24 + 24 bits fit in 53
    addend = np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    shadow = total - product
    error = (product - (total - shadow)) + (addend - shadow)
    bits = total.view(np.int64)
    inexact_even = (error != 0) & (bits & 1 == 0)
    towards = np.where(np.signbit(error) == np.signbit(total), 1, -1)
    return np.where(inexact_even, bits + towards, bits).view(np.float64).astype(np.float32)


def exp(x: ArrayLike) -> F32:
    """Return e^x for x <= 88 as docs/numerics.md computes it."""
    x = np.asarray(x, np.float32)
    small = x < f32(-87.33)
    x = np.minimum(np.where(small, f32(0), x), f32(88))
    n = np.rint(x * f32(float.fromhex("0x1.715476p+0")))
    r = fma(n, f32(-float.fromhex("0x1.62e430p-1")), x)
    r = fma(n, f32(float.fromhex("0x1.05c610p-29")), r)
    p = np.full_like(r, f32(1.9875691500e-4))
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, f32(c))
    y = fma(p, r * r, r) + f32(1)
    return np.where(small, f32(0), np.ldexp(y, n.astype(np.int32)))


def silu(x: F32) -> F32:
    """Return x / (1 + exp(-x))."""
    return x / (f32(1) + exp(-x))


def tanh(x: F32) -> F32:
    """Return tanh as docs/numerics.md computes it."""
    x = np.asarray(x, np.float32)
    near = np.clip(x, f32(-1), f32(1))
    z = near * near
    p = np.full_like(z, f32(-5.70498872745e-3))
    for c in (2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1):
        p = fma(p, z, f32(c))
    small = fma(p * z, near, near)
    large = f32(1) - f32(2) / (exp(np.abs(x) + np.abs(x)) + f32(1))
    return np.where(np.abs(x) >= f32(0.625), np.copysign(large, x), small)


def gelu(x: F32) -> F32:
    """Return x * Phi(x)."""
    t = f32(1) / fma(f32(0.231641888), np.abs(x), f32(1))
    q = np.full_like(t, f32(0.5307027145))
    for c in (-0.7265760135, 0.7107068705, -0.142248368, 0.127414796):
        q = fma(q, t, f32(c))
    tail = (q * t) * exp((x * x) * f32(-0.5))
    return x * np.where(x < 0, tail, f32(1) - tail)


def gelu_tanh(x: F32) -> F32:
    """Return x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    inner = f32(0.7978845608) * fma(f32(0.044715) * x, x * x, x)
    return (f32(0.5) * x) * (f32(1) + tanh(inner))


def sigmoid(x: F32) -> F32:
    """Return 1 / (1 + exp(-x))."""
    return f32(1) / (f32(1) + exp(-x))


def relu2(x: F32) -> F32:
    """Return max(x, 0)^2."""
    positive = np.maximum(x, f32(0))
    return positive * positive


def swiglu(gate: F32, up: F32, a: float, b: float) -> F32:
    """Return (up + 1) * (gate * sigmoid(a * gate)), clamped."""
    gate, up = np.minimum(gate, f32(b)), np.clip(up, f32(-b), f32(b))
    return (up + f32(1)) * (gate * sigmoid(f32(a) * gate))


FUNCTIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh, "relu2": relu2, "sigmoid": sigmoid}


def tree(lanes: F32) -> F32:
    """Return the sum over the last axis of 16 lanes: i + 8, then 4, 2, 1."""
    for width in (8, 4, 2, 1):
        lanes = lanes[..., :width] + lanes[..., width : 2 * width]
    return lanes[..., 0]


def quantize(x: F32) -> tuple[NDArray[np.int8], F32, NDArray[np.int32]]:
    """Return (q, scale, sum) of the vectors along the last axis, one scale each."""
    amax = np.abs(x).max(axis=-1)
    tiny = amax < f32(2.0**-100)
    safe = np.where(tiny, f32(1), amax)
    inverse = f32(127) / safe
    q = np.clip(np.rint(x * inverse[..., None]), -127, 127)
    q = np.where(tiny[..., None], 0, q).astype(np.int8)
    scale = np.where(tiny, f32(0), safe / f32(127)).astype(np.float32)
    return q, scale, q.sum(axis=-1, dtype=np.int32)


ROW = 1 << 30  # the group of rows with one scale


def quantize_rows(x: F32, group: int = 64, *, rotated: int = 0) -> Activation:
    """Return an activation of x (rows, k), whose 64 columns share a scale with those of their group, or with ROW of
    their row; blocks of ``rotated`` columns are rotated first.

    The last 64 are padded with zeros.
    """
    rows, k = x.shape
    group = min(group, -(-k // 64) * 64)
    blocks, wide = -(-k // 64), group // 64
    padded = np.zeros((rows, -(-blocks // wide) * group), np.float32)
    padded[:, :k] = x
    if rotated:
        factor = f32(1 / 16 if rotated == 256 else 1 / 8)
        padded[:, :k] = hadamard((x * factor).reshape(rows, -1, rotated)).reshape(rows, k)
    q, scale, _ = quantize(padded.reshape(rows, -(-blocks // wide), group))
    q = q.reshape(padded.shape)[:, : blocks * 64]
    total = q.reshape(rows, blocks, 64).sum(axis=2, dtype=np.int32)
    return q, scale.repeat(wide, axis=1)[:, :blocks], total


def rmsnorm(x: F32, w: F32 | None, eps: float, offset: float = 0.0) -> F32:
    """Return (x * 1/sqrt(mean(x^2) + eps)) * (offset + w) for x (rows, k); without w the product is left out."""
    rows, k = x.shape
    lanes = np.zeros((rows, 16), np.float32)
    for i in range(0, k, 16):
        part = x[:, i : i + 16]
        width = part.shape[1]
        lanes[:, :width] = fma(part, part, lanes[:, :width])
    r = f32(1) / np.sqrt(tree(lanes) / f32(k) + f32(eps))
    y = x * r[:, None]
    return y if w is None else y * (f32(offset) + w if offset else w)


def layernorm(x: F32, w: F32, b: F32, eps: float) -> F32:
    """Return fma((x - mean) * 1/sqrt(variance + eps), w, b) for x (rows, k)."""
    rows, k = x.shape
    lanes, squares = np.zeros((2, rows, 16), np.float32)
    for i in range(0, k, 16):
        part = x[:, i : i + 16]
        lanes[:, : part.shape[1]] += part
    d = x - (tree(lanes) / f32(k))[:, None]
    for i in range(0, k, 16):
        part = d[:, i : i + 16]
        width = part.shape[1]
        squares[:, :width] = fma(part, part, squares[:, :width])
    r = f32(1) / np.sqrt(tree(squares) / f32(k) + f32(eps))
    return fma(d * r[:, None], w[None], b[None])


def linear_float(x: F32, w: F32) -> F32:
    """Return x (rows, k) times w (n, k) transposed, one chain per output."""
    acc = np.zeros((len(x), len(w)), np.float32)
    for k in range(x.shape[1]):
        acc = fma(x[:, k, None], w[None, :, k], acc)
    return acc


def linear_int(activation: Activation, q_w: NDArray[np.int8], scale_w: F32, size: int = 0) -> F32:
    """Return the linear of q_w (n, k padded to 64) with scale_w (n, steps), ``size`` or k / steps inputs to a scale."""
    q_x, scale_x, _ = activation
    size = size or q_w.shape[1] // scale_w.shape[1]
    out = np.zeros((len(q_x), len(q_w)), np.float32)
    for step in range(scale_w.shape[1]):
        part = slice(step * size, (step + 1) * size)
        acc = q_x[:, part].astype(np.int32) @ q_w[:, part].astype(np.int32).T
        scales = scale_w[None, :, step] * scale_x[:, step * size // 64, None]
        out = fma(acc.astype(np.float32), scales, out)
    return out


def linear_affine(activation: Activation, weights: panels.WithMinima, size: int) -> F32:
    """Return the linear of weights with minima, d and e for ``size`` inputs."""
    q_x, scale_x, _ = activation
    out = np.zeros((len(q_x), len(weights.u)), np.float32)
    a, b = np.zeros_like(out), np.zeros_like(out)
    su = weights.u * weights.s.repeat(32, axis=1)
    groups = su.shape[1] // 64
    for group in range(groups):
        part, scale = slice(64 * group, 64 * group + 64), scale_x[:, group, None]
        acc = q_x[:, part].astype(np.int64) @ su[:, part].T
        a = fma(acc.astype(np.float32), scale, a)
        for half in (2 * group, 2 * group + 1):
            minus = -q_x[:, 32 * half : 32 * half + 32].sum(axis=1, dtype=np.int32)
            y = minus.astype(np.float32)[:, None] * scale
            b = fma(weights.t[None, :, half].astype(np.float32), y, b)
        if (group + 1) * 64 % size == 0 or group + 1 == groups:
            block = group * 64 // size
            out = fma(weights.e[None, :, block], b, fma(weights.d[None, :, block], a, out))
            a, b = np.zeros_like(out), np.zeros_like(out)
    return out


def rope(x: F32, cos: F32, sin: F32) -> F32:
    """Rotate heads x (rows, heads, head_dim) by each row's cos and sin (rows, rot / 2)."""
    half = cos.shape[1]
    a, b = x[..., :half], x[..., half : 2 * half]
    c, s = cos[:, None], sin[:, None]
    return np.concatenate([fma(a, c, -(b * s)), fma(b, c, a * s), x[..., 2 * half :]], axis=-1)


def lora(
    cur: F32,
    u: F32,
    b: NDArray,
    b_scale: F32 | None = None,
    row_scale: F32 | None = None,
    bias: F32 | None = None,
) -> F32:
    """Return (cur (rows, n) + u (rows, rank) times b (n, rank) transposed) * row_scale + bias, one segment's part.

    int8 b has one scale per output.
    """
    total = cur if b_scale is None else np.zeros_like(cur)
    for r in range(u.shape[1]):
        total = fma(u[:, r, None], b[None, :, r].astype(np.float32), total)
    if b_scale is not None:
        total = fma(total, b_scale[None], cur) if u.shape[1] else cur
    total = total if row_scale is None else total * row_scale
    return total if bias is None else total + bias


def scaled(total: F32, scaling: F32, weight: float) -> F32:
    """Return u of sums (rows, rank): times the adapter's scaling (rank,), then times the request's weight."""
    return (total * scaling) * f32(weight)


def shrink_float(x: F32, a: F32) -> F32:
    """Return x (rows, k) times a (rank, k) transposed, in eight chains."""
    chains = np.zeros((8, len(x), len(a)), np.float32)
    for k in range(x.shape[1]):
        chains[k % 8] = fma(x[:, k, None], a[None, :, k], chains[k % 8])
    for width in (4, 2, 1):
        chains = chains[:width] + chains[width : 2 * width]
    return chains[0]


def hadamard(x: F32) -> F32:
    """Return the last axis times Sylvester's matrix, in blocks of the largest power of two that divides its length."""
    block, h = x.shape[-1] & -x.shape[-1], 1
    while h < block:
        pairs = x.reshape(*x.shape[:-1], -1, 2, h)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([a + b, a - b], axis=-2).reshape(x.shape)
        h *= 2
    return x


def quantize_int4(x: F32) -> tuple[F32, F32]:
    """Return (q, scale) along the last axis; the largest magnitude (of two the negative value) becomes -8."""
    high, low = x.max(axis=-1), x.min(axis=-1)
    extreme = np.where(high > -low, high, low)
    tiny = np.abs(extreme) < f32(2.0**-100)
    safe = np.where(tiny, f32(1), extreme)
    q = np.clip(np.rint(x * (f32(-8) / safe)[..., None]), -8, 7)
    return np.where(tiny[..., None], f32(0), q), np.where(tiny, f32(0), safe / f32(-8))


def quantize_e4m3(x: F32) -> tuple[F32, F32]:
    """Return (numbers up to 1.75, scale) of the vectors along the last axis."""
    amax = np.abs(x).max(axis=-1)
    tiny = amax < f32(2.0**-100)
    safe = np.where(tiny, f32(1), amax)
    y = np.clip(x * (f32(1.75) / safe)[..., None], f32(-1.75), f32(1.75))
    step = np.ldexp(f32(1), np.maximum(np.frexp(y)[1] - 1, -14) - 3)
    numbers = np.where(tiny[..., None], f32(0), np.rint(y / step) * step)
    return numbers.astype(np.float32), np.where(tiny, f32(0), safe / f32(1.75))


def quantize_int8(x: F32) -> tuple[F32, F32]:
    """Return (q, scale) of the vectors along the last axis."""
    q, scale, _ = quantize(x)
    return q.astype(np.float32), scale


ROTATED = {
    "int8h": (quantize_int8, quantize_int8),
    "k8v4h": (quantize_int8, quantize_int4),
    "int4h": (quantize_int4, quantize_int4),
    "fp8h": (quantize_e4m3, quantize_e4m3),
    "int8hi": (quantize_int8, quantize_int8),
    "k8v4hi": (quantize_int8, quantize_int4),
    "int4hi": (quantize_int4, quantize_int4),
}
"""{rotating format: its quantizers of K and V}"""

SCALED = ROTATED | {"int8": (quantize_int8, quantize_int8), "int8i": (quantize_int8, quantize_int8)}
SHARED = {"int8i": 255, "int8hi": 255, "k8v4hi": 127, "int4hi": 127}
"""{format whose values are added in integers: the largest share}"""


class Cache:
    """One sequence's keys and values of one kv head as a kernel reads them back, (positions, head_dim).

    k and v are numbers, which those formats that have scales multiply by ``k_scale`` and ``v_scale`` (positions,).
    """

    def __init__(self, k: F32, v: F32, fmt: str) -> None:
        """Store k and v in a cache format."""
        self.most_share = f32(SHARED.get(fmt, 0))
        self.scaled, self.rotated, self.integers = fmt in SCALED, fmt in ROTATED, fmt in SCALED and fmt != "fp8h"
        if self.rotated:
            k, v = (hadamard(x * f32(1 / (x.shape[-1] & -x.shape[-1]))) for x in (k, v))
        if fmt == "f16":
            k, v = (np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32) for x in (k, v))
        self.k, self.v = k, v
        if self.scaled:
            (self.k, self.k_scale), (self.v, self.v_scale) = (
                write(x) for write, x in zip(SCALED[fmt], (k, v), strict=True)
            )

    def scores(self, q: F32, positions: NDArray[np.intp], scale: np.float32) -> F32:
        """Return q . k * scale of the given positions."""
        q = hadamard(q) if self.rotated else q
        if self.integers:
            qq, qs, _ = quantize(q)
            acc = self.k[positions].astype(np.int32) @ qq.astype(np.int32)
            return acc.astype(np.float32) * ((qs * self.k_scale[positions]) * scale)
        acc = np.zeros(len(positions), np.float32)
        for d in range(len(q)):
            acc = fma(q[d], self.k[positions, d], acc)
        return acc * (self.k_scale[positions] * scale if self.scaled else scale)

    def mix(self, p: F32, positions: NDArray[np.intp]) -> F32:
        """Return the sum of p * v over the given positions of a split."""
        if self.most_share:
            r = p * self.v_scale[positions]
            largest = np.abs(r).max()
            inverse = f32(0) if largest < f32(2.0**-100) else self.most_share / largest
            shares = np.clip(np.rint(r * inverse), -self.most_share, self.most_share).astype(np.int32)
            total = shares @ self.v[positions].astype(np.int32)
            return total.astype(np.float32) * (largest / self.most_share)
        o = np.zeros(self.v.shape[1], np.float32)
        for weight, t in zip(p, positions, strict=True):
            o = fma(weight * self.v_scale[t] if self.scaled else weight, self.v[t], o)
        return o

    def finish(self, out: F32) -> F32:
        """Return the finished output of mixed values."""
        return hadamard(out) if self.rotated else out


def attention(
    q: F32,
    cache: Cache,
    position: int,
    scale: float,
    window: int = 0,
    *,
    softcap: float = 0.0,
    slope: float | None = None,
    sink: float | None = None,
    end: int | None = None,
) -> F32:
    """Return the output (v_head_dim,) of one query head at one position, which sees positions below ``end``."""
    first = max(0, position - window + 1) if window else 0
    splits = []
    end = position + 1 if end is None else end
    for start in range(first // 256 * 256, end, 256):
        positions = np.arange(max(start, first), min(start + 256, end))
        s = cache.scores(q, positions, f32(scale))
        if softcap:
            s = f32(softcap) * tanh(s / f32(softcap))
        if slope is not None:
            s = fma(f32(slope), (positions - position).astype(np.float32), s)
        m = s.max()
        p = exp(s - m)
        lanes = np.zeros(16, np.float32)
        for weight, t in zip(p, positions, strict=True):
            lanes[t % 16] += weight
        splits.append((m, tree(lanes), cache.mix(p, positions)))
    largest = max([m for m, _, _ in splits] + ([] if sink is None else [f32(sink)]))
    total, out = f32(0), np.zeros(cache.v.shape[1], np.float32)
    for m, part, o in splits:
        weight = exp(m - largest)
        total = fma(part, weight, total)
        out = fma(o, weight, out)
    if sink is not None:
        total = total + exp(f32(sink) - largest)
    return cache.finish(out / total)
