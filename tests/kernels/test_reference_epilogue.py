"""Epilogues: each equals its formula, and a fused list equals the same steps run one by one, byte for byte."""

import numpy as np
import pytest
from kernels import model
from kernels.harness import OneOp, find_kernel, packed, panel_vector, panels_for, random_rows, reference, unpacked

from infeng_core import _native as native

LIBRARY = reference()
N, K, ROWS = 96, 40, 5


def linear_kernel(epilogues: list[str]) -> native.Kernel:
    return find_kernel(LIBRARY, native.Problem("linear", weight="f32", act="f32", epilogues=epilogues, n=N, k=K))


def plain_linear(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return model.linear_float(x, unpacked("f32", w))


@pytest.fixture(name="x")
def fixture_x() -> np.ndarray:
    return random_rows(1, ROWS, K)


@pytest.fixture(name="w")
def fixture_w() -> np.ndarray:
    return random_rows(2, N, K)


def test_bias_row_scale_and_residual_apply_in_the_order_of_the_list(x: np.ndarray, w: np.ndarray) -> None:
    bias, scale, residual = random_rows(3, 1, N)[0], random_rows(4, 1, N)[0], random_rows(5, ROWS, N)
    op = OneOp(ROWS)
    out, added = op.output(N), op.input(residual)
    steps = [native.Epilogue.row_scale(scale), native.Epilogue.bias(bias), native.Epilogue.residual(added)]
    op.program.linear(
        op.bind(linear_kernel(["row_scale", "bias", "residual"])), packed("f32", w), op.input(x), out, steps
    )
    op.run()
    assert np.array_equal(op.result(out), (plain_linear(x, w) * scale + bias) + residual)


def test_residual_may_be_the_output_itself(x: np.ndarray, w: np.ndarray) -> None:
    residual = random_rows(6, ROWS, N)
    op = OneOp(ROWS)
    both = op.input(residual)
    op.program.linear(
        op.bind(linear_kernel(["residual"])), packed("f32", w), op.input(x), both, [native.Epilogue.residual(both)]
    )
    op.run()
    assert np.array_equal(op.result(both), plain_linear(x, w) + residual)


def test_silu_mul_joins_alternating_panels(x: np.ndarray, w: np.ndarray) -> None:
    op = OneOp(ROWS)
    out = op.output(N // 2)
    op.program.linear(
        op.bind(linear_kernel(["silu_mul"])), packed("f32", w), op.input(x), out, [native.Epilogue.silu_mul()]
    )
    op.run()
    pairs = plain_linear(x, w).reshape(ROWS, N // 32, 2, 16)
    expected = (model.silu(pairs[:, :, 0]) * pairs[:, :, 1]).reshape(ROWS, N // 2)
    assert np.array_equal(op.result(out), expected)
    gate, up = pairs[:, :, 0].astype(np.float64), pairs[:, :, 1].astype(np.float64)
    truth = gate / (1 + np.exp(np.minimum(-gate, 88))) * up
    assert np.allclose(expected, truth.reshape(ROWS, -1), rtol=1e-6, atol=1e-30)


def test_exp_saturates_instead_of_overflowing() -> None:
    gate = np.array([-1000, -100, -87.4, -1e-38, 0, 87, 89, 1000] * 2, np.float32)
    x = np.concatenate([gate, np.ones(16, np.float32)])[None]
    op = OneOp(1)
    out = op.output(16)
    kernel = find_kernel(LIBRARY, native.Problem("epilogue", epilogues=["silu_mul"], n=32))
    op.program.epilogue(op.bind(kernel), op.input(x), 32, out, [native.Epilogue.silu_mul()])
    op.run()
    got = op.result(out)[0]
    assert np.array_equal(got, model.silu(gate))
    assert np.all(np.isfinite(got))
    assert np.allclose(got[4:8], [0, 87, 89, 1000])


@pytest.mark.parametrize("n", [64, 96, 176])
def test_quantize_writes_groups_of_64_and_pads_the_last_one(n: int) -> None:
    x = random_rows(7, 4, n)
    x[2] *= 1e-35
    op = OneOp(4)
    out, act = op.output(n), op.program.activation(n)
    kernel = find_kernel(LIBRARY, native.Problem("epilogue", epilogues=["quantize"], n=n))
    op.program.epilogue(op.bind(kernel), op.input(x), n, out, [native.Epilogue.quantize(act)])
    op.run()
    for got, want in zip(op.result_activation(act), model.quantize_rows(x), strict=True):
        assert np.array_equal(got, want)
    assert np.array_equal(op.result(out), x)
    q, scale, _ = op.result_activation(act)
    restored = (q.reshape(4, -1, 64) * scale[:, :, None]).reshape(4, -1)[:, :n]
    assert np.all(np.abs(restored - x) <= np.repeat(scale, 64, axis=1)[:, :n] * 0.501 + 2.0**-100)


@pytest.mark.parametrize(
    ("n", "group", "rotated"),
    [
        (176, 128, 0),
        (896, 256, 0),
        (64, 64, 64),
        (576, 256, 64),
        (172, model.ROW, 0),
        (576, model.ROW, 64),
        (896, model.ROW, 128),
        (1280, model.ROW, 256),
    ],
)
def test_quantize_shares_a_scale_in_wide_groups_and_rotates_first(n: int, group: int, rotated: int) -> None:
    x = random_rows(7, 4, n)
    x[2] *= 1e-35
    x[3, 5] = 1000
    op = OneOp(4)
    out, act = op.output(n), op.program.activation(n, group=group, rotated=rotated)
    step = "quantize_row" if group == model.ROW else "quantize_wide"
    kernel = find_kernel(LIBRARY, native.Problem("epilogue", epilogues=[step], n=n))
    op.program.epilogue(op.bind(kernel), op.input(x), n, out, [native.Epilogue.quantize(act)])
    op.run()
    for got, want in zip(op.result_activation(act), model.quantize_rows(x, group, rotated=rotated), strict=True):
        assert np.array_equal(got, want)
    assert np.array_equal(op.result(out), x), "what is kept as floats is not rotated"
    q, scale, _ = op.result_activation(act)
    restored = (q.reshape(4, -1, 64) * scale[:, :, None]).reshape(4, -1)[:, :n]
    if rotated:
        factor = 1 / 16 if rotated == 256 else 1 / 8
        restored = model.hadamard(restored.reshape(4, -1, rotated) / (rotated * factor)).reshape(4, n)
    error = np.abs(restored - x).max(axis=1)
    # Each of a block's values has half a step of error; all of them may add up.
    assert np.all(error <= scale.max(axis=1) * (8.2 if rotated else 0.501) + 2.0**-100)


def test_activations_of_other_groups_are_refused() -> None:
    program = OneOp(1).program
    with pytest.raises(native.NativeError, match="each 96 inputs"):
        program.activation(192, group=96)
    with pytest.raises(native.NativeError, match="no multiple of 64"):
        program.activation(176, rotated=64)
    with pytest.raises(native.NativeError, match="blocks of 256"):
        program.activation(256, rotated=256)
    with pytest.raises(native.NativeError, match="no multiple of 256"):
        program.activation(640, group=model.ROW, rotated=256)
    with pytest.raises(native.NativeError, match="fit in 32 bits"):
        program.activation(native.MOST_ROW_INPUTS + 64, group=model.ROW)


@pytest.mark.parametrize("fmt", ["f32", "bf16", "int8-row", "int4-g64"])
@pytest.mark.parametrize("rows", [1, 5, 33])
def test_a_fused_list_equals_its_steps_in_ops_of_their_own(fmt: str, rows: int) -> None:
    n, k = 352, 100
    x, w = random_rows(8, rows, k), random_rows(9, n, k)
    bias = panel_vector(random_rows(10, 1, n)[0])
    names = ["bias", "silu_mul", "quantize"]
    results = []
    for fused in (True, False):
        op = OneOp(rows, threads=2)
        problem = {"weight": fmt, "act": "f32" if fmt in ("f32", "bf16") else "int8-g64", "n": n, "k": k}
        kernel = find_kernel(LIBRARY, native.Problem("linear", epilogues=names if fused else [], **problem))
        source = op.input(x) if fmt in ("f32", "bf16") else op.input_activation(model.quantize_rows(x), k)
        out, act = op.output(n // 2), op.program.activation(n // 2)
        steps = [native.Epilogue.bias(bias), native.Epilogue.silu_mul(), native.Epilogue.quantize(act)]
        if fused:
            op.program.linear(op.bind(kernel), packed(fmt, w), source, out, steps)
        else:
            wide = op.output(n)
            op.program.linear(op.bind(kernel), packed(fmt, w), source, wide)
            values, outs = [wide, wide, out, out], [wide, out, out]
            for i, (name, step) in enumerate(zip(names, steps, strict=True)):
                single = find_kernel(LIBRARY, native.Problem("epilogue", epilogues=[name], n=n))
                columns = n if i < 2 else n // 2
                op.program.epilogue(op.bind(single), values[i], columns, outs[i], [step])
        op.run()
        results.append((op.result(out), *op.result_activation(act)))
    for fused_part, apart in zip(*results, strict=True):
        assert np.array_equal(fused_part, apart)
    assert panels_for(n) * 16 == n
