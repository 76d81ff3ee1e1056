"""The reference computes the same bytes without optimization and without FMA instructions."""

import subprocess
from pathlib import Path

import infeng_abi
import numpy as np
import pytest
from kernels import model
from kernels.harness import OneOp, find_kernel, packed, panel_vector, random_rows, reference

from infeng_core import _native as native

SOURCES = Path(__file__).parents[2] / "infeng_core" / "reference"
N, K, ROWS = 160, 172, 6


@pytest.fixture(scope="module", name="plain")
def fixture_plain(tmp_path_factory: pytest.TempPathFactory) -> native.Library:
    """Build the reference for any CPU of this architecture, as the compiler understands it without optimisation."""
    path = tmp_path_factory.mktemp("plain") / "libplain.so"
    command = [
        "cc",
        "-std=c11",
        "-O0",
        "-DINFENG_REFERENCE_PLAIN",
        '-DINFENG_REFERENCE_VERSION="0"',
        "-fPIC",
        "-shared",
    ]
    flags = [*infeng_abi.CFLAGS, f"-I{infeng_abi.include_dir()}"]
    subprocess.run([*command, *flags, *sorted(SOURCES.glob("*.c")), "-lm", "-o", path], check=True)
    disassembly = subprocess.run(["objdump", "-d", path], check=True, capture_output=True, text=True).stdout
    assert "vfmadd" not in disassembly
    return native.open_library(str(path))


@pytest.mark.parametrize("fmt", list(native.WEIGHT_FORMATS))
def test_a_linear_with_all_of_its_steps_is_the_same(plain: native.Library, fmt: str) -> None:
    x, w = random_rows(1, ROWS, K), random_rows(2, N, K)
    bias, scale, residual = panel_vector(random_rows(3, 1, N)[0]), random_rows(4, 1, N)[0], random_rows(5, ROWS, N)
    names = ["bias", "row_scale", "residual", "silu_mul", "quantize"]
    results = []
    for library in (reference(), plain):
        op = OneOp(ROWS)
        act = native.activation(fmt)
        kernel = find_kernel(library, native.Problem("linear", weight=fmt, act=act, epilogues=names, n=N, k=K))
        source = op.input(x) if act == "f32" else op.input_activation(model.quantize_rows(x), K)
        out, quantized, added = op.output(N // 2), op.program.activation(N // 2), op.input(residual)
        steps = [
            native.Epilogue.bias(bias),
            native.Epilogue.row_scale(scale),
            native.Epilogue.residual(added),
            native.Epilogue.silu_mul(),
            native.Epilogue.quantize(quantized),
        ]
        op.program.linear(op.bind(kernel), packed(fmt, w), source, out, steps)
        op.run()
        results.append((op.result(out), *op.result_activation(quantized)))
    for ours, theirs in zip(*results, strict=True):
        assert np.array_equal(ours, theirs)


def test_rmsnorm_is_the_same(plain: native.Library) -> None:
    x, w = random_rows(6, ROWS, K), random_rows(7, 1, K)[0]
    results = []
    for library in (reference(), plain):
        op = OneOp(ROWS)
        out = op.output(K)
        op.program.rmsnorm(op.bind(find_kernel(library, native.Problem("rmsnorm", k=K))), op.input(x), w, 1e-5, out)
        op.run()
        results.append(op.result(out))
    assert np.array_equal(*results)


@pytest.mark.parametrize("fmt", native.CACHE_FORMATS)
def test_rope_append_and_attention_are_the_same(plain: native.Library, fmt: str) -> None:
    rows, dim = 300, 64
    x = random_rows(8, rows, 3 * dim) * np.float32(0.2)
    cos, sin = native.rope_tables(native.rope_inv_freq(dim, 10000.0).astype(np.float32), rows)
    results = []
    for library in (reference(), plain):
        cache = native.KvCache(fmt, layers=1, blocks=19, kv_heads=1, head_dim=dim)
        op = OneOp(rows, context=rows, segments=[(0, rows, 0, 0)], block_tables=range(19))
        shape = {"heads": 1, "kv_heads": 1, "head_dim": dim}
        buffer, out = op.input(x), op.output(dim)
        rope, append, attend = (
            op.bind(find_kernel(library, native.Problem(name, kv=kv, **shape)))
            for name, kv in [("rope", None), ("kv_append", fmt), ("attention", fmt)]
        )
        op.program.rope(rope, buffer, **shape, k_column=dim, cos=cos, sin=sin)
        op.program.kv_append(append, buffer, cache, 0, k_column=dim, v_column=2 * dim)
        op.program.attention(attend, buffer, cache, 0, out, heads=1, scale=0.125)
        op.run()
        results.append(op.result(out))
    assert np.array_equal(*results)
