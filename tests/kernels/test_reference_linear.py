"""The reference linear, embed, rmsnorm and rope kernels equal an independent NumPy model byte for byte."""

import numpy as np
import pytest
from goldens import panels
from kernels import model
from kernels.harness import (
    FLOAT_FORMATS,
    INT_FORMATS,
    Activation,
    OneOp,
    find_kernel,
    packed,
    packed_bytes,
    panels_for,
    random_rows,
    reference,
    unpacked,
)

from infeng_core import _native as native

SHAPES = [(1, 16, 8), (3, 40, 64), (17, 16, 172), (2, 100, 576), (5, 33, 896), (1, 7, 130)]  # rows, n, k
ROPES = [(8, 8), (64, 64), (80, 64), (96, 96), (128, 128), (256, 64)]  # head_dim, rot
LIBRARY = reference()


def weight_for(n: int, k: int) -> np.ndarray:
    return random_rows(n + k, n, k)


def integers_of(fmt: str, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read q (n, k padded) and scale (n, steps) straight from the packed bytes, by the drawing in docs/format.md."""
    n, k = w.shape
    groups = -(-k // 64)
    panels = np.frombuffer(packed_bytes(fmt, w), np.uint8)[: panels_for(n) * native.panel_bytes(fmt, k)]
    panels = panels.reshape(panels_for(n), -1)
    if fmt == "int8-row":
        scale = panels[:, :64].copy().view(np.float32).reshape(-1, 1)
        lines = panels[:, 64:].reshape(len(panels), -1, 16, 4).astype(np.int16) - 128  # panel, k / 4, n, 4
        q = lines.transpose(0, 2, 1, 3).reshape(len(panels) * 16, -1)
        return q[:n].astype(np.int8), np.repeat(scale, groups, axis=1)[:n]
    if fmt == "int8-g32":
        blocks = panels.reshape(len(panels), groups, 64 + 1024)
        halves = np.ascontiguousarray(blocks[:, :, :64]).view(np.float16).reshape(len(panels), 2 * groups, 16)
        lines = blocks[:, :, 64:].reshape(len(panels), 16 * groups, 16, 4).astype(np.int16) - 128  # panel, k / 4, n, 4
        q = lines.transpose(0, 2, 1, 3).reshape(len(panels) * 16, -1)
        scale = halves.astype(np.float32).swapaxes(1, 2).reshape(len(panels) * 16, -1)
        return q[:n].astype(np.int8), scale[:n]
    size = int(fmt[-2:])
    steps = groups * 64 // size
    q = np.zeros((len(panels), 16, steps, 2, size // 8, 4), np.int8)  # panel, n, group, half, line, j
    scale = np.zeros((len(panels), 16, steps), np.float32)
    for g in range(steps):
        block = (g // 2) * (64 + 16 * size)
        scale[:, :, g] = panels[:, block + g % 2 * 32 :][:, :32].copy().view(np.float16)
        lines = panels[:, block + 64 + g % 2 * 8 * size :][:, : 8 * size].reshape(len(panels), size // 8, 16, 4)
        q[:, :, g, 0] = (lines & 15).transpose(0, 2, 1, 3).astype(np.int8) - 8
        q[:, :, g, 1] = (lines >> 4).transpose(0, 2, 1, 3).astype(np.int8) - 8
    return q.reshape(len(panels) * 16, -1)[:n], scale.reshape(len(panels) * 16, -1)[:n]


@pytest.mark.parametrize("fmt", FLOAT_FORMATS)
@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
def test_linear_over_float_weights_is_one_fma_chain_per_output(fmt: str, rows: int, n: int, k: int) -> None:
    x, w = random_rows(1, rows, k), weight_for(n, k)
    op = OneOp(rows)
    kernel = find_kernel(LIBRARY, native.Problem("linear", weight=fmt, act="f32", n=n, k=k))
    out = op.output(panels_for(n) * 16)
    op.program.linear(op.bind(kernel), packed(fmt, w), op.input(x), out)
    op.run()
    got = op.result(out)
    assert np.array_equal(got[:, :n], model.linear_float(x, unpacked(fmt, w)))
    assert np.array_equal(got[:, n:], np.zeros_like(got[:, n:]))
    truth = x.astype(np.float64) @ unpacked(fmt, w).astype(np.float64).T
    bound = np.abs(x).astype(np.float64) @ np.abs(unpacked(fmt, w)).astype(np.float64).T
    assert np.all(np.abs(got[:, :n] - truth) <= k * 2.0**-24 * bound)


def over_integers(fmt: str, rows: int, n: int, k: int, group: int = 64) -> tuple[np.ndarray, Activation, np.ndarray]:
    """Return a weight (n, k), int8 rows, and what the reference makes of them: (rows, n padded to whole panels)."""
    w, activation = weight_for(n, k), model.quantize_rows(random_rows(2, rows, k), group)
    op = OneOp(rows)
    kernel = find_kernel(LIBRARY, native.Problem("linear", weight=fmt, act=f"int8-g{group}", n=n, k=k))
    out = op.output(panels_for(n) * 16)
    op.program.linear(op.bind(kernel), packed(fmt, w), op.input_activation(activation, k, group), out)
    op.run()
    return w, activation, op.result(out)


@pytest.mark.parametrize("fmt", ["int8-row", "int8-g32", "int4-g64", "int4-g32"])
@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
def test_linear_over_integer_weights_adds_exact_group_sums(fmt: str, rows: int, n: int, k: int) -> None:
    w, activation, got = over_integers(fmt, rows, n, k)
    q, scale = integers_of(fmt, w)
    assert np.array_equal(q[:, :k] * np.repeat(scale, q.shape[1] // scale.shape[1], axis=1)[:, :k], unpacked(fmt, w))
    assert np.array_equal(got[:, :n], model.linear_int(activation, q, scale))


@pytest.mark.parametrize(("bits", "group"), [(4, 64), (4, 128), (4, 256), (5, 64), (5, 256), (6, 64), (6, 128)])
@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
def test_linear_over_sub_scaled_weights_applies_the_row_scale_at_the_end(
    bits: int, group: int, rows: int, n: int, k: int
) -> None:
    fmt = f"int{bits}-p32"
    w, activation, got = over_integers(fmt, rows, n, k, group)
    data = np.frombuffer(packed_bytes(fmt, w), np.uint8)[: panels_for(n) * native.panel_bytes(fmt, k)]
    weights, d = panels.sub_scaled(bits, data.reshape(panels_for(n), -1))
    q = weights.reshape(-1, weights.shape[2])[:n]
    assert np.array_equal(q[:, :k].astype(np.float32) * d.reshape(-1, 1)[:n], unpacked(fmt, w))
    groups = np.ones((n, -(-q.shape[1] // group)), np.float32)
    assert np.array_equal(got[:, :n], model.linear_int(activation, q, groups, group) * d.ravel()[:n])


@pytest.mark.parametrize("size", [256, 128])
@pytest.mark.parametrize(("rows", "n", "k"), [*SHAPES, (18, 20, 700)])
def test_linear_over_weights_with_minima_adds_superblocks(size: int, rows: int, n: int, k: int) -> None:
    fmt = f"int4-a{size}"
    w, activation, got = over_integers(fmt, rows, n, k)
    data = np.frombuffer(packed_bytes(fmt, w), np.uint8)[: panels_for(n) * native.panel_bytes(fmt, k)]
    weights = panels.with_minima(size, data.reshape(panels_for(n), -1))
    assert np.array_equal(got, model.linear_affine(activation, weights, size))
    q_x, scale, _ = activation
    truth = (q_x * np.repeat(scale, 64, axis=1)).astype(np.float64)[:, :k] @ unpacked(fmt, w).astype(np.float64).T
    assert np.allclose(got[:, :n], truth, rtol=0, atol=1e-5 * np.abs(truth).max())


@pytest.mark.parametrize("fmt", (*FLOAT_FORMATS, *INT_FORMATS))
@pytest.mark.parametrize(("n", "k"), [(20, 8), (33, 172), (64, 576)])
def test_embed_gathers_the_dequantized_rows(fmt: str, n: int, k: int) -> None:
    w = weight_for(n, k)
    ids = [0, n - 1, 15, 16, 5, 5]
    op = OneOp(len(ids))
    out = op.output(k)
    op.program.embed(op.bind(find_kernel(LIBRARY, native.Problem("embed", weight=fmt, n=n, k=k))), packed(fmt, w), out)
    op.run(tokens=ids)
    assert np.array_equal(op.result(out), unpacked(fmt, w)[ids])


@pytest.mark.parametrize("k", [8, 64, 172, 576, 896])
def test_rmsnorm_sums_in_sixteen_lanes_and_fuses_quantize(k: int) -> None:
    x, w = random_rows(3, 5, k), random_rows(4, 1, k)[0]
    op = OneOp(5)
    kernel = find_kernel(
        LIBRARY, native.Problem("rmsnorm", epilogues=["quantize", "quantize_wide", "quantize_row"], n=k, k=k)
    )
    out, act = op.output(k), op.program.activation(k)
    block = 0 if k % 64 else 64
    wide = op.program.activation(k, group=256, rotated=block)
    row = op.program.activation(k, group=model.ROW, rotated=block)
    steps = [native.Epilogue.quantize(value) for value in (act, wide, row)]
    op.program.rmsnorm(op.bind(kernel), op.input(x), w, 1e-5, out, steps)
    op.run()
    expected = model.rmsnorm(x, w, 1e-5)
    assert np.array_equal(op.result(out), expected)
    for value, rounded in (
        (act, model.quantize_rows(expected)),
        (wide, model.quantize_rows(expected, 256, rotated=block)),
        (row, model.quantize_rows(expected, model.ROW, rotated=block)),
    ):
        for got, want in zip(op.result_activation(value), rounded, strict=True):
            assert np.array_equal(got, want)
    truth = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5) * w
    assert np.allclose(expected, truth, rtol=2e-6, atol=0)


def test_rmsnorm_gathers_the_sampled_rows() -> None:
    x, w = random_rows(5, 6, 64), np.ones(64, np.float32)
    op = OneOp(6, sample_rows=[5, 0])
    out = op.output(64, samples=True)
    kernel = find_kernel(LIBRARY, native.Problem("rmsnorm", k=64))
    op.program.rmsnorm(op.bind(kernel), op.input(x), w, 1e-6, out, gather_samples=True)
    op.run()
    assert np.array_equal(op.result(out), model.rmsnorm(x[[5, 0]], w, 1e-6))


@pytest.mark.parametrize(("head_dim", "rot"), ROPES)
def test_rope_rotates_pairs_half_a_head_apart(head_dim: int, rot: int) -> None:
    heads, kv_heads, positions = 4, 2, [3, 17, 0]
    k_column = heads * head_dim
    x = random_rows(6, 3, k_column + kv_heads * head_dim)
    cos, sin = native.rope_tables(native.rope_inv_freq(rot, 10000.0).astype(np.float32), 32)
    op = OneOp(3, positions=positions)
    buffer = op.input(x)
    kernel = find_kernel(LIBRARY, native.Problem("rope", heads=heads, kv_heads=kv_heads, head_dim=head_dim))
    op.program.rope(
        op.bind(kernel),
        buffer,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        k_column=k_column,
        cos=cos,
        sin=sin,
    )
    op.run()
    expected = model.rope(x.reshape(3, heads + kv_heads, head_dim), cos[positions], sin[positions])
    assert np.array_equal(op.result(buffer), expected.reshape(3, -1))
    norms = np.linalg.norm(x.reshape(3, -1, head_dim), axis=-1)
    assert np.allclose(np.linalg.norm(expected, axis=-1), norms, rtol=1e-6)
