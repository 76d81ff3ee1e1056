"""Keys and values are stored as the format says, and attention over them equals the NumPy model byte for byte."""

import math

import numpy as np
import pytest
from kernels import model
from kernels.harness import OneOp, find_kernel, random_rows, reference

from infeng_core import _native as native

LIBRARY = reference()
HEADS = [(1, 1, 8), (4, 1, 64), (4, 2, 80), (3, 3, 96), (8, 1, 128), (2, 1, 256)]  # heads, kv heads, head dim


class Sequence:
    """Keys and values of one layer, written to a shuffled cache by kv_append as an engine would."""

    def __init__(self, fmt: str, length: int, kv_heads: int, head_dim: int, seed: int = 0) -> None:
        self.fmt, self.length, self.kv_heads, self.head_dim = fmt, length, kv_heads, head_dim
        blocks = -(-length // 16)
        self.table = np.random.default_rng(seed).permutation(blocks + 2)[:blocks].tolist()
        self.cache = native.KvCache(fmt, layers=2, blocks=blocks + 2, kv_heads=kv_heads, head_dim=head_dim)
        self.kv = random_rows(seed, length, 2 * kv_heads * head_dim + 16)  # 16 unused columns
        self.v_column = -(-kv_heads * head_dim // 16) * 16

    def append(self, begin: int, end: int) -> None:
        op = OneOp(
            end - begin,
            context=self.length,
            positions=range(begin, end),
            segments=[(0, end - begin, begin, 0)],
            block_tables=self.table,
        )
        problem = native.Problem("kv_append", kv=self.fmt, kv_heads=self.kv_heads, head_dim=self.head_dim)
        x = op.input(self.kv[begin:end])
        op.program.kv_append(
            op.bind(find_kernel(LIBRARY, problem)), x, self.cache, 1, k_column=0, v_column=self.v_column
        )
        op.run()

    def model(self, head: int) -> model.Cache:
        part = slice(head * self.head_dim, (head + 1) * self.head_dim)
        return model.Cache(self.kv[:, part], self.kv[:, self.v_column :][:, part], self.fmt)


def nibbles(bytes_: np.ndarray) -> np.ndarray:
    """Return bytes (16, n) as numbers (16, 2 n): the low halves, then the high ones."""
    return np.concatenate([bytes_ & 15, bytes_ >> 4], axis=1).astype(np.float32) - 8


def stored_keys(fmt: str, slab: np.ndarray, dim: int) -> np.ndarray:
    """Return K of a slab as numbers (16 tokens, dim), as abi.h draws it."""
    if fmt in ("int4h", "int4hi"):
        lines = slab[: 8 * dim].reshape(dim // 8, 16, 4)
        groups = [lines[8 * g : 8 * g + 8] for g in range(dim // 64)] + np.split(
            lines[dim // 64 * 8 :], dim % 64 // 8 or 1
        )
        return np.concatenate([nibbles(g.transpose(1, 0, 2).reshape(16, -1)) for g in groups if len(g)], axis=1)
    if fmt in ("int8", "int8h", "k8v4h", *model.SHARED):
        return slab[: dim * 16].reshape(dim // 4, 16, 4).transpose(1, 0, 2).reshape(16, dim).astype(np.float32) - 128
    return plain(fmt, slab, dim).reshape(dim, 16).T


def stored_values(fmt: str, slab: np.ndarray, dim: int) -> np.ndarray:
    """Return what begins with V as numbers (16 tokens, dim)."""
    if fmt in ("int4h", "k8v4h"):
        groups = slab[: -(-dim // 16) * 8 * 16].reshape(16, -1, 8)
        found = np.concatenate([nibbles(groups[:, g]) for g in range(groups.shape[1])], axis=1)
        assert not found[:, dim:][found[:, dim:] != -8].any()  # -8: a row that was never written
        return found[:, :dim]
    if fmt in ("k8v4hi", "int4hi"):
        lines = nibbles(slab[: -(-dim // 16) * 8 * 16].reshape(-1, 32))  # (groups of tokens x 16 columns, 64)
        groups = lines.reshape(4, -1, 4)  # groups of tokens, columns, tokens
        assert not groups[:, dim:][groups[:, dim:] != -8].any()
        return groups[:, :dim].transpose(0, 2, 1).reshape(16, dim)
    if fmt in model.SHARED:
        lines = slab[: -(-dim // 16) * 16 * 16].view(np.int8).reshape(4, -1, 4)  # groups of tokens, columns, tokens
        assert not lines[:, dim:].any()
        return lines[:, :dim].transpose(0, 2, 1).reshape(16, dim).astype(np.float32)
    if fmt in ("int8", "int8h"):
        return slab[: dim * 16].view(np.int8).reshape(16, dim).astype(np.float32)
    return plain(fmt, slab, dim).reshape(16, dim)


def plain(fmt: str, slab: np.ndarray, dim: int) -> np.ndarray:
    if fmt == "fp8h":
        codes = slab[: dim * 16].astype(np.uint16)
        return ((codes & 0x80) << 8 | (codes & 0x7F) << 7).view(np.float16).astype(np.float32)
    dtype = np.float32 if fmt == "f32" else np.float16
    return slab[: dim * 16 * np.dtype(dtype).itemsize].view(dtype).astype(np.float32)


def size_of_keys(fmt: str, dim: int) -> int:
    bits = {"f32": 32, "f16": 16, "int4h": 4, "int4hi": 4}.get(fmt, 8)
    return -(-dim * 16 * bits // 512) * 64


@pytest.mark.parametrize("fmt", native.CACHE_FORMATS)
@pytest.mark.parametrize("head_dim", [8, 64, 80, 128])
def test_kv_append_stores_each_position_in_its_block(fmt: str, head_dim: int) -> None:
    sequence = Sequence(fmt, 41, 2, head_dim)
    sequence.kv[::5, 3] *= 100  # outliers
    for begin, end in [(0, 17), (17, 18), (18, 41)]:
        sequence.append(begin, end)
    for head in range(2):
        expected = sequence.model(head)
        for position in range(41):
            slab = sequence.cache.layer(1)[sequence.table[position // 16], head]
            token = position % 16
            assert np.array_equal(stored_keys(fmt, slab, head_dim)[token], expected.k[position])
            values = slab[size_of_keys(fmt, head_dim) :]
            assert np.array_equal(stored_values(fmt, values, head_dim)[token], expected.v[position])
            if expected.scaled:
                scales = slab[-128:].view(np.float32)
                assert scales[token] == expected.k_scale[position]
                assert scales[16 + token] == expected.v_scale[position]
    assert not sequence.cache.layer(0).any()


@pytest.mark.parametrize("dim", [8, 24, 64, 80, 96, 128])
def test_rotating_twice_restores_the_values(dim: int) -> None:
    x = np.arange(1, 1 + 3 * dim, dtype=np.float32).reshape(3, dim)
    block = dim & -dim
    rotated = model.hadamard(x / np.float32(block))
    assert np.array_equal(model.hadamard(rotated), x)  # sums of few bits are exact
    assert np.array_equal(rotated[:, 0], x[:, :block].sum(axis=1) / block)


@pytest.mark.parametrize("fmt", sorted(model.ROTATED))
def test_a_head_of_zeros_and_one_of_the_largest_numbers_are_stored(fmt: str) -> None:
    sequence = Sequence(fmt, 3, 1, 64)
    sequence.kv[0] = 0
    sequence.kv[1] = np.finfo(np.float32).max  # whose sums would be infinite, were they not divided first
    sequence.kv[2] = -(2.0**-120)
    sequence.append(0, 3)
    scales = sequence.cache.layer(1)[sequence.table[0], 0][-128:].view(np.float32)
    expected = sequence.model(0)
    assert np.array_equal(scales[:3], expected.k_scale)
    assert np.array_equal(scales[16:19], expected.v_scale)
    assert scales[0] == scales[2] == 0
    assert 1e36 < abs(scales[1]) < np.inf


def test_f16_rounds_to_even_and_clamps_to_the_largest_half() -> None:
    values = [65504.0, 65519.0, 65520.0, 1e30, 2049.0, 2051.0, 2**-24, 2**-25, 3 * 2**-25, 2**-14 - 2**-26, 1e-20, 0.0]
    sequence = Sequence("f16", 1, 1, 2 * len(values))
    sequence.kv[0, : 2 * len(values)] = [*values, *(-value for value in values)]
    sequence.append(0, 1)
    slab = sequence.cache.layer(1)[sequence.table[0], 0]
    stored = slab[: 2 * len(values) * 32].view(np.float16).reshape(-1, 16)[:, 0]
    wanted = [65504, 65504, 65504, 65504, 2048, 2052, 2**-24, 0, 2**-23, 2**-14, 0, 0]
    assert stored.astype(np.float64).tolist() == [*wanted, *(-value for value in wanted)]
    assert np.signbit(stored[len(values) :]).all()


def attend(
    sequence: Sequence, heads: int, first: int, *, window: int = 0, threads: int = 1, quantize: bool = False
) -> tuple[np.ndarray, np.ndarray, tuple]:
    """Run attention for rows [first, length); returns (q, out, activation)."""
    rows, dim = sequence.length - first, sequence.head_dim
    q = random_rows(99, sequence.length, heads * dim)[first:] * np.float32(0.3)
    op = OneOp(
        rows,
        threads=threads,
        context=sequence.length,
        positions=range(first, sequence.length),
        segments=[(0, rows, first, 0)],
        block_tables=sequence.table,
    )
    names = ["quantize"] if quantize else []
    kernel = find_kernel(
        LIBRARY,
        native.Problem(
            "attention",
            kv=sequence.fmt,
            epilogues=names,
            heads=heads,
            kv_heads=sequence.kv_heads,
            head_dim=dim,
            context=sequence.length,
        ),
    )
    out, act = op.output(heads * dim), op.program.activation(heads * dim)
    op.program.attention(
        op.bind(kernel),
        op.input(q),
        sequence.cache,
        1,
        out,
        heads=heads,
        window=window,
        scale=1 / math.sqrt(dim),
        epilogues=[native.Epilogue.quantize(act)] if quantize else [],
    )
    op.run()
    return q, op.result(out), op.result_activation(act)


def expected_rows(sequence: Sequence, q: np.ndarray, heads: int, first: int, window: int = 0) -> np.ndarray:
    dim = sequence.head_dim
    caches = [sequence.model(h) for h in range(sequence.kv_heads)]
    scale = float(np.float32(1 / math.sqrt(dim)))
    out = np.empty_like(q)
    for row in range(len(q)):
        for head in range(heads):
            part = slice(head * dim, (head + 1) * dim)
            cache = caches[head * sequence.kv_heads // heads]
            out[row, part] = model.attention(q[row, part], cache, first + row, scale, window)
    return out


@pytest.mark.parametrize("fmt", native.CACHE_FORMATS)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
def test_attention_equals_the_model_for_every_head_shape(fmt: str, heads: int, kv_heads: int, head_dim: int) -> None:
    sequence = Sequence(fmt, 35, kv_heads, head_dim)
    sequence.append(0, 35)
    q, out, _ = attend(sequence, heads, 30)
    assert np.array_equal(out, expected_rows(sequence, q, heads, 30))


@pytest.mark.parametrize("fmt", native.CACHE_FORMATS)
@pytest.mark.parametrize(("length", "window"), [(256, 0), (257, 0), (530, 0), (530, 40), (530, 300), (513, 1)])
def test_splits_of_256_positions_and_windows_combine_exactly(fmt: str, length: int, window: int) -> None:
    sequence = Sequence(fmt, length, 1, 16)
    sequence.append(0, length)
    q, out, _ = attend(sequence, 2, length - 2, window=window)
    assert np.array_equal(out, expected_rows(sequence, q, 2, length - 2, window))


@pytest.mark.parametrize("fmt", native.CACHE_FORMATS)
def test_attention_is_softmax_of_q_k_times_v(fmt: str) -> None:
    sequence = Sequence(fmt, 300, 1, 64)
    sequence.append(0, 300)
    q, out, _ = attend(sequence, 4, 299)
    cache = sequence.model(0)
    k, v = cache.k.astype(np.float64), cache.v.astype(np.float64)
    if cache.scaled:
        k, v = k * cache.k_scale[:, None], v * cache.v_scale[:, None]
    heads = q.reshape(4, 64)
    heads = model.hadamard(heads) if cache.rotated else heads
    if cache.integers:
        qq, qs, _ = model.quantize(heads)
        heads = qq * qs[:, None].astype(np.float64)
    scores = heads.astype(np.float64) @ k.T / 8
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    truth = cache.finish((p / p.sum(axis=1, keepdims=True)) @ v)
    error = 6e-3 if cache.most_share else 2e-6  # shares are bytes
    assert np.allclose(out.reshape(4, 64), truth, rtol=0, atol=error * np.abs(sequence.kv).max())


@pytest.mark.parametrize("fmt", native.CACHE_FORMATS)
def test_chunks_and_threads_do_not_change_a_byte(fmt: str) -> None:
    whole, chunked = Sequence(fmt, 80, 2, 64), Sequence(fmt, 80, 2, 64)
    whole.append(0, 80)
    for begin, end in [(0, 33), (33, 34), (34, 80)]:
        chunked.append(begin, end)
    _, expected, act = attend(whole, 4, 0, quantize=True)
    for threads in (1, 2):
        _, out, other = attend(chunked, 4, 0, threads=threads, quantize=True)
        assert np.array_equal(out, expected)
        for got, want in zip(other, act, strict=True):
            assert np.array_equal(got, want)
    _, last, _ = attend(chunked, 4, 79)
    assert np.array_equal(last[0], expected[79])
    for got, want in zip(act, model.quantize_rows(expected), strict=True):
        assert np.array_equal(got, want)


def test_attention_does_not_fuse_quantize_into_heads_that_are_no_multiple_of_64() -> None:
    for head_dim, fits in [(64, True), (80, False), (128, True)]:
        problem = native.Problem(
            "attention", kv="f32", epilogues=["quantize"], heads=2, kv_heads=1, head_dim=head_dim, context=64
        )
        assert any(kernel.accepts(problem) for kernel in LIBRARY.kernels if kernel.op == "attention") is fits
