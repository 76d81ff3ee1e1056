"""Needs of families beyond a Llama: each equals its NumPy formula byte for byte and changes the result."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from kernels import model
from kernels.harness import OneOp, find_kernel, random_rows, reference

from infeng_core import _native as native

LIBRARY = reference()
HEADS, KV_HEADS, LENGTH, FIRST = 4, 2, 300, 296
USUAL = ("f32", "f16", "int8", "int4h", "int8i", "int4hi")  # the rest have other codes under the same code
FORMATS = [fmt if fmt in USUAL else pytest.param(fmt, marks=pytest.mark.nightly) for fmt in native.CACHE_FORMATS]


def attend(fmt: str, dim: int, v_dim: int, needs: list[str], **how: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return what the reference makes of rows [FIRST, LENGTH) of a sequence, and the model's bytes for them."""
    blocks = -(-LENGTH // 16)
    table = np.random.default_rng(1).permutation(blocks).tolist()
    cache = native.KvCache(fmt, layers=1, blocks=blocks, kv_heads=KV_HEADS, head_dim=dim, v_head_dim=v_dim)
    v_column = -(-KV_HEADS * dim // 16) * 16
    kv = random_rows(2, LENGTH, v_column + KV_HEADS * v_dim)
    sizes = {"kv": fmt, "kv_heads": KV_HEADS, "head_dim": dim, "v_head_dim": v_dim}
    where = {"context": LENGTH, "block_tables": table}
    op = OneOp(LENGTH, positions=range(LENGTH), segments=[(0, LENGTH, 0, 0)], **where)
    kernel = find_kernel(LIBRARY, native.Problem("kv_append", **sizes))
    op.program.kv_append(op.bind(kernel), op.input(kv), cache, 0, k_column=0, v_column=v_column)
    op.run()

    rows = LENGTH - FIRST
    q = random_rows(3, rows, HEADS * dim)
    op = OneOp(rows, positions=range(FIRST, LENGTH), segments=[(0, rows, FIRST, 0)], **where)
    problem = native.Problem("attention", heads=HEADS, context=LENGTH, needs=needs, **sizes)
    out, scale = op.output(HEADS * v_dim), 1 / math.sqrt(dim)
    op.program.attention(
        op.bind(find_kernel(LIBRARY, problem)), op.input(q), cache, 0, out, heads=HEADS, scale=scale, **how
    )
    op.run()
    expected = np.zeros((rows, HEADS, v_dim), np.float32)
    for head in range(HEADS):
        kv_head = head * KV_HEADS // HEADS
        k = kv[:, kv_head * dim : (kv_head + 1) * dim]
        v = kv[:, v_column + kv_head * v_dim :][:, :v_dim]
        for row in range(rows):
            expected[row, head] = model.attention(
                q[row, head * dim : (head + 1) * dim],
                model.Cache(k, v, fmt),
                FIRST + row,
                scale,
                how.get("window", 0),
                softcap=how.get("softcap", 0.0),
                slope=how["slopes"][head] if "slopes" in how else None,
                sink=how["sinks"][head] if "sinks" in how else None,
                end=LENGTH if how.get("mask") == "full" else None,
            )
    return op.result(out), expected.reshape(rows, -1)


@cache
def plain(fmt: str) -> np.ndarray:
    """Return what attention makes of the same rows without any need."""
    return attend(fmt, 32, 32, [])[0]


SINKS = np.array([-3.0, 0.0, 1.5, 200.0], np.float32)
SLOPES = np.array([0.5, 0.25, 0.125, 0.0], np.float32)
WAYS: dict[str, dict[str, Any]] = {
    "window": {"window": 37},
    "softcap": {"softcap": 0.5},
    "sinks": {"sinks": SINKS},
    "alibi": {"slopes": SLOPES},
    "mask": {"mask": "full"},
}


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("need", WAYS)
def test_attention_with_a_need_equals_the_model_and_not_attention_without(fmt: str, need: str) -> None:
    out, expected = attend(fmt, 32, 32, [need], **WAYS[need])
    assert out.tobytes() == expected.tobytes()
    assert not np.array_equal(out, plain(fmt))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("dim", "v_dim"), [(32, 16), (24, 40), (96, 64)])
def test_heads_of_k_and_v_may_differ_in_size(fmt: str, dim: int, v_dim: int) -> None:
    out, expected = attend(fmt, dim, v_dim, [])
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("fmt", ["int8", "int8i", "k8v4hi"])
def test_all_needs_of_attention_combine(fmt: str) -> None:
    everything = {name: value for way in WAYS.values() for name, value in way.items()}
    out, expected = attend(fmt, 32, 48, list(WAYS), **everything)
    assert out.tobytes() == expected.tobytes()


def norm(x: np.ndarray, weight: np.ndarray | None, needs: list[str], columns: int, **how: Any) -> np.ndarray:
    op = OneOp(len(x))
    out = op.output(columns)
    kernel = find_kernel(LIBRARY, native.Problem("rmsnorm", k=how.get("size", columns), needs=needs))
    op.program.rmsnorm(op.bind(kernel), op.input(x), weight, 1e-5, out, **how)
    op.run()
    return op.result(out)


def test_rmsnorm_works_without_a_weight_and_with_an_offset() -> None:
    x, w = random_rows(4, 6, 100), random_rows(5, 1, 100)[0]
    plain = norm(x, None, ["norm_plain"], 100)
    assert plain.tobytes() == model.rmsnorm(x, None, 1e-5).tobytes()
    shifted = norm(x, w, ["norm_offset"], 100, offset=1.0)
    assert shifted.tobytes() == model.rmsnorm(x, w, 1e-5, 1.0).tobytes()
    assert not np.array_equal(shifted, norm(x, w, [], 100))


@pytest.mark.parametrize("in_place", [False, True])
def test_rmsnorm_normalizes_each_head_by_itself(in_place: bool) -> None:
    size, heads = 20, 3
    x, w = random_rows(6, 5, 16 + heads * size), random_rows(7, 1, size)[0]
    op = OneOp(5)
    source = op.input(x)
    out = source if in_place else op.output(x.shape[1])
    kernel = find_kernel(LIBRARY, native.Problem("rmsnorm", k=size, needs=["norm_heads"]))
    op.program.rmsnorm(op.bind(kernel), source, w, 1e-5, out, heads=heads, size=size, column=16)
    op.run()
    got = op.result(out)
    for head in range(heads):
        part = slice(16 + head * size, 16 + (head + 1) * size)
        assert got[:, part].tobytes() == model.rmsnorm(x[:, part], w, 1e-5).tobytes()
    assert np.array_equal(got[:, :16], x[:, :16] if in_place else np.full((5, 16), op.STALE))


def test_rmsnorm_gathers_the_rows_that_are_sampled() -> None:
    x, w = random_rows(8, 6, 64), random_rows(9, 1, 64)[0]
    op = OneOp(6, sample_rows=[4, 0, 5])
    out = op.output(64, samples=True)
    kernel = find_kernel(LIBRARY, native.Problem("rmsnorm", k=64, needs=["row_gather"]))
    op.program.rmsnorm(op.bind(kernel), op.input(x), w, 1e-5, out, gather_samples=True)
    op.run()
    assert op.result(out).tobytes() == model.rmsnorm(x[[4, 0, 5]], w, 1e-5).tobytes()


def layernorm(x: np.ndarray, w: np.ndarray, b: np.ndarray, eps: float, *samples: int) -> Any:
    """Return what the reference makes of x (rows, k), or of the sampled rows only."""
    op = OneOp(len(x), sample_rows=samples)
    columns, gather = x.shape[1], bool(samples)
    out = op.output(columns, samples=gather)
    kernel = find_kernel(LIBRARY, native.Problem("layernorm", k=columns, needs=["row_gather"] if gather else []))
    operands = {"x": op.input(x), "weight": w, "bias": b, "eps": eps}
    op.program.row_op("layernorm", op.bind(kernel), columns, out, gather_samples=gather, operands=operands)
    op.run()
    return op.result(out)


@pytest.mark.parametrize("columns", [1, 5, 16, 40, 256, 300, 3072])
def test_layernorm_equals_the_model_and_is_close_to_the_formula_in_binary64(columns: int) -> None:
    x, (w, b) = random_rows(20, 7, columns) + np.float32(3), random_rows(21, 2, columns)
    assert layernorm(x, w, b, 1e-5).tobytes() == model.layernorm(x, w, b, 1e-5).tobytes()
    x = np.random.default_rng(22).standard_normal(x.shape).astype(np.float32) + np.float32(3)
    out, wide = layernorm(x, w, b, 1e-5), x.astype(np.float64)
    variance = wide.var(axis=1, keepdims=True)
    formula = (wide - wide.mean(axis=1, keepdims=True)) / np.sqrt(variance + np.float64(np.float32(1e-5))) * w + b
    largest = max(1, float(np.abs(w).max()))
    np.testing.assert_allclose(out, formula, rtol=0, atol=1e-5 * largest)  # means of 3 among deviations of 1


def test_layernorm_of_rows_far_from_zero_keeps_their_deviations() -> None:
    x = np.random.default_rng(23).standard_normal((3, 512)).astype(np.float32) + np.float32(1000)
    one, zero = np.ones(512, np.float32), np.zeros(512, np.float32)
    out = layernorm(x, one, zero, 1e-5)
    np.testing.assert_allclose(out.mean(axis=1), 0, atol=1e-3)
    np.testing.assert_allclose(out.std(axis=1), 1, atol=1e-3)


def test_layernorm_gathers_the_rows_that_are_sampled() -> None:
    x, w, b = random_rows(24, 6, 72), random_rows(25, 1, 72)[0], random_rows(26, 1, 72)[0]
    assert layernorm(x, w, b, 1e-5, 4, 0, 5).tobytes() == layernorm(x, w, b, 1e-5)[[4, 0, 5]].tobytes()


def test_rope_normalizes_heads_first_and_scales_q_last() -> None:
    dim, rows = 32, 4
    x = random_rows(10, rows, 5 * dim)
    cos, sin = native.rope_tables(native.rope_inv_freq(dim, 10000.0).astype(np.float32), 8)
    q_norm, k_norm, q_scale = random_rows(11, 2, dim)[0], random_rows(12, 1, dim)[0], random_rows(13, 1, 8)[0]
    op = OneOp(rows, positions=[3, 0, 7, 1])
    buffer = op.input(x)
    kernel = find_kernel(LIBRARY, native.Problem("rope", head_dim=dim, needs=["rope_norm", "rope_scale"]))
    op.program.rope(
        op.bind(kernel), buffer, heads=3, kv_heads=2, head_dim=dim, k_column=3 * dim, cos=cos, sin=sin,
        q_norm=q_norm, k_norm=k_norm, q_scale=q_scale, eps=1e-6,
    )  # fmt: skip
    op.run()
    at = [3, 0, 7, 1]
    heads = [model.rmsnorm(x[:, h * dim : (h + 1) * dim], q_norm if h < 3 else k_norm, 1e-6) for h in range(5)]
    rotated = model.rope(np.stack(heads, axis=1), cos[at], sin[at])
    rotated[:, :3] *= q_scale[at][:, None, None]
    assert op.result(buffer).tobytes() == rotated.reshape(rows, -1).tobytes()


# ------------------------------------------------------------------------------------------------------- epilogues

N = 96


def values() -> np.ndarray:
    """Return rows with all sorts of magnitudes, both zeros and the borders of the formulas."""
    x = random_rows(14, 9, N) * np.float32(4)
    x[0, :12] = [0.0, -0.0, 0.625, -0.625, 0.6249999, 88, -88, 1000, -1000, 1e-30, -1e-30, 9]
    return x


def finished(step: native.Epilogue, word: str, x: np.ndarray, columns: int = N, other: np.ndarray | None = None) -> Any:
    op = OneOp(len(x))
    out = op.output(columns)
    kernel = find_kernel(LIBRARY, native.Problem("epilogue", epilogues=[word], n=N))
    if other is not None:
        step = step(op.input(other))
    op.program.epilogue(op.bind(kernel), op.input(x), N, out, [step])
    op.run()
    return op.result(out)


@pytest.mark.parametrize("function", model.FUNCTIONS)
def test_functions_equal_their_formulas_in_activate_gated_mul_and_mul(function: str) -> None:
    x, other, f = values(), random_rows(15, 9, N), model.FUNCTIONS[function]
    assert finished(native.Epilogue.activate(function), function, x).tobytes() == f(x).tobytes()
    times = finished(lambda buffer: native.Epilogue.mul(buffer, function), f"mul_{function}", x, N, other)
    assert times.tobytes() == (x * f(other)).tobytes()
    pairs = x.reshape(9, N // 32, 2, 16)
    gated = finished(native.Epilogue.gated_mul(function), f"{function}_mul", x, N // 2)
    assert gated.tobytes() == (f(pairs[:, :, 0]) * pairs[:, :, 1]).reshape(9, -1).tobytes()


def test_scale_soft_cap_and_a_plain_product_equal_their_formulas() -> None:
    x, other = values(), random_rows(16, 9, N)
    assert finished(native.Epilogue.scale(0.3), "scale", x).tobytes() == (x * np.float32(0.3)).tobytes()
    capped = finished(native.Epilogue.softcap(30.0), "softcap", x)
    assert capped.tobytes() == (np.float32(30) * model.tanh(x / np.float32(30))).tobytes()
    assert np.abs(capped).max() <= 30
    assert finished(native.Epilogue.mul, "mul", x, N, other).tobytes() == (x * other).tobytes()


def test_swiglu_clamps_gate_and_up_and_adds_one() -> None:
    x = values()
    pairs = x.reshape(9, N // 32, 2, 16)
    expected = model.swiglu(pairs[:, :, 0], pairs[:, :, 1], 1.702, 7.0).reshape(9, -1)
    got = finished(native.Epilogue.gated_mul("swiglu", 1.702, 7.0), "swiglu_mul", x, N // 2)
    assert got.tobytes() == expected.tobytes()


def test_approximations_are_close_to_the_exact_functions() -> None:
    x = np.concatenate([np.linspace(-12, 12, 40001), np.geomspace(1e-8, 1, 1000)]).astype(np.float32)
    wide = x.astype(np.float64)
    erf = np.vectorize(math.erf)
    assert np.abs(model.tanh(x) / np.tanh(wide) - 1).max() < 3e-7
    assert np.abs(model.gelu(x) - wide * 0.5 * (1 + erf(wide / math.sqrt(2)))).max() < 1e-6
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    assert np.abs(model.gelu_tanh(x) - wide * 0.5 * (1 + np.tanh(inner))).max() < 2e-6
    assert np.abs(model.sigmoid(x) * (1 + np.exp(-wide)) - 1).max() < 3e-7


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (native.Epilogue.activate, "identity"),
        (native.Epilogue.activate, "swiglu"),
        (native.Epilogue.activate, "tanh"),
        (native.Epilogue.gated_mul, "identity"),
        (lambda word: native.Epilogue.mul(0, word), "swiglu"),
    ],
)
def test_an_error_names_a_function_that_a_step_cannot_have(make: Any, word: str) -> None:
    with pytest.raises(native.NativeError, match=word):
        make(word)
