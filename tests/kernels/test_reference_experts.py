"""route and combine of the reference, against their formulas in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.harness import find_kernel, reference
from numpy.typing import NDArray

from infeng_core import _native as native

REFERENCE = reference()
NOTHING = np.zeros(0, np.int32)


def program_of(rows: int) -> native.Program:
    return native.Program(native.Pool(2, spin_us=0), max_rows=rows, max_samples=0, max_segments=1, context=64)


def bound(op: str, rows: int, **fields: object) -> list[tuple[int, native.Kernel]]:
    return [(rows, find_kernel(REFERENCE, native.Problem(op, rows=(1, rows), workers=2, **fields)))]


def run(program: native.Program, rows: int) -> None:
    program.finish()
    program.run(np.zeros(rows, np.int32), np.arange(rows, dtype=np.int32), np.zeros((0, 4), np.int32), NOTHING, NOTHING)


def routed(scores: NDArray[np.float32], top_k: int, *, chosen: bool) -> tuple[NDArray, ...]:
    """Return experts, weights, places, begin and the sorted copies of rows that hold their own numbers."""
    rows, experts = scores.shape
    program = program_of(rows)
    logits, x, out = program.buffer(experts), program.buffer(16), program.buffer(16, copies=top_k)
    routing = program.routing(experts=experts, top_k=top_k)
    kernels = bound("route", rows, act="f32", k=16, experts=experts, top_k=top_k)
    program.route(kernels, logits, x, out, routing=routing, columns=16, share_of_chosen=chosen)
    program.view(logits)[:] = scores
    program.view(x)[:] = np.arange(rows)[:, None]
    run(program, rows)
    return (*program.view_routing(routing), program.view(out)[:, 0].astype(int))


def scores(rows: int, experts: int) -> NDArray[np.float32]:
    return np.round(np.random.RandomState(experts).standard_normal((rows, experts)) * 3).astype(np.float32)


def test_of_equal_logits_the_lowest_expert_is_chosen_first() -> None:
    experts, weights, *_ = routed(np.array([[1, 3, 3, 0, 3], [0, 0, 0, 0, 0]], np.float32), 3, chosen=True)
    assert experts.tolist() == [[1, 2, 4], [0, 1, 2]]
    assert (weights == np.float32(1) / np.float32(3)).all()


@pytest.mark.parametrize(("rows", "count", "top_k"), [(1, 1, 1), (40, 7, 2), (33, 64, 8), (5, 130, 64)])
def test_experts_are_the_largest_logits_and_copies_are_sorted_by_expert(rows: int, count: int, top_k: int) -> None:
    logits = scores(rows, count)
    experts, _, places, begin, copies = routed(logits, top_k, chosen=False)
    np.testing.assert_array_equal(experts, np.argsort(-logits, axis=1, kind="stable")[:, :top_k])
    order = np.argsort(experts.ravel(), kind="stable")  # by expert, then by row: a row goes to an expert once
    np.testing.assert_array_equal(copies, order // top_k)
    np.testing.assert_array_equal(places.ravel()[order], np.arange(rows * top_k))
    np.testing.assert_array_equal(begin[0], np.searchsorted(np.sort(experts.ravel()), np.arange(count + 1)))


def test_weights_are_a_softmax_over_all_or_over_chosen_experts() -> None:
    logits = scores(50, 20)
    e = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    for chosen in (False, True):
        experts, weights, *_ = routed(logits, 6, chosen=chosen)
        picked = np.take_along_axis(e, experts.astype(np.intp), axis=1)
        expected = picked / (picked if chosen else e).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_the_experts_of_a_row_differ_even_if_logits_are_nan() -> None:
    logits = np.array([[np.nan] * 5, [np.inf, 1, np.nan, 2, -np.inf]], np.float32)
    experts, *_, copies = routed(logits, 4, chosen=False)
    assert all(len(set(row)) == 4 and set(row) <= set(range(5)) for row in experts.tolist())
    assert sorted(copies.tolist()) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_results_of_experts_are_added_in_order() -> None:
    rows, top_k, n = 5, 3, 40
    program, random = program_of(rows), np.random.RandomState(2)
    x, out, routing = program.buffer(n, copies=top_k), program.buffer(n), program.routing(experts=4, top_k=top_k)
    program.combine(bound("combine", rows, n=n, k=n, top_k=top_k), x, n, out, routing=routing)
    _, weights, places, _ = program.view_routing(routing)
    weights[:] = random.standard_normal((rows, top_k))
    places[:] = random.permutation(rows * top_k).reshape(rows, top_k)
    made = program.view(x)
    made[:] = random.standard_normal(made.shape)
    expected = np.zeros((rows, n), np.float32)
    for i in range(top_k):  # binary64 holds the product of two binary32 exactly: nearly always the sum rounds as an FMA
        product = weights[:, i, None].astype(np.float64) * made[places[:, i]]
        expected = (product + expected).astype(np.float32)
    run(program, rows)
    np.testing.assert_allclose(program.view(out), expected, rtol=1e-6, atol=1e-6)


def test_ops_that_do_not_fit_a_mixture_of_experts_are_refused() -> None:
    program, rows = program_of(2), 2
    with pytest.raises(native.NativeError, match="a row cannot go to 5 of 4 experts"):
        program.routing(experts=4, top_k=5)
    with pytest.raises(native.NativeError, match="a buffer of 65 copies"):
        program.buffer(16, copies=65)
    routing = program.routing(experts=4, top_k=2)
    flat, copies, out = program.buffer(16), program.buffer(64, copies=2), program.buffer(16, copies=2)
    kernels = bound("linear", rows, weight="f32", act="f32", n=16, k=64)
    size = native.panel_bytes("f32", 64)
    weight = native.Weight("f32", 64, 64, 4, size, native.Arena(4 * size, huge_pages=False))
    odd = native.Weight("f32", 80, 64, 5, size, native.Arena(5 * size, huge_pages=False))
    for given, made, steps, why in (
        (odd, out, [], "5 panels do not hold 4 experts"),
        (weight, out, [native.Epilogue.residual(out)], "this step cannot follow a linear of experts"),
        (weight, out, [native.Epilogue.bias(np.zeros(64, "f4"))] * 2, "this step cannot follow a linear of experts"),
        (weight, out, [native.Epilogue.bias(np.zeros(16, "f4"))], "bias has 16 values, the op needs 64"),
        (weight, flat, [], "has 1 copies of each row, the op works on 2"),
    ):
        with pytest.raises(native.NativeError, match=why):
            program.expert_linear(kernels, given, copies, made, steps, routing=routing)
    with pytest.raises(native.NativeError, match="there is no routing 3"):
        program.expert_linear(kernels, weight, copies, out, routing=3)


def test_each_expert_adds_its_own_bias_before_its_gates_join() -> None:
    rows, experts, n = 6, 3, 32
    program, random = program_of(rows), np.random.RandomState(4)
    logits, x, copies = program.buffer(experts), program.buffer(64), program.buffer(64, copies=2)
    out, routing = program.buffer(n // 2, copies=2), program.routing(experts=experts, top_k=2)
    route = bound("route", rows, act="f32", k=64, experts=experts, top_k=2)
    program.route(route, logits, x, copies, routing=routing, columns=64, share_of_chosen=True)
    panels, size = experts * 2, native.panel_bytes("f32", 64)
    weight = native.Weight("f32", experts * n, 64, panels, size, native.Arena(panels * size, huge_pages=False))
    bias = random.standard_normal(experts * n).astype(np.float32)  # behind products with zeros
    steps = [native.Epilogue.bias(bias), native.Epilogue.gated_mul("silu")]
    kernels = bound("linear", rows, weight="f32", act="f32", n=n, k=64, epilogues=["bias", "silu_mul"])
    program.expert_linear(kernels, weight, copies, out, steps, routing=routing)
    program.view(logits)[:] = random.standard_normal((rows, experts))
    run(program, rows)
    *_, begin = program.view_routing(routing)
    expert = np.repeat(np.arange(experts), np.diff(begin.ravel()))
    gate, up = bias.reshape(experts, 2, n // 2)[expert].swapaxes(0, 1)
    np.testing.assert_allclose(program.view(out)[: 2 * rows], gate / (1 + np.exp(-gate)) * up, rtol=1e-5, atol=1e-7)
    assert len(set(expert)) == experts


def test_a_step_fails_if_rows_are_not_sorted_by_expert() -> None:
    program, rows = program_of(2), 2
    routing, x, out = program.routing(experts=4, top_k=2), program.buffer(64, copies=2), program.buffer(16, copies=2)
    size = native.panel_bytes("f32", 64)
    weight = native.Weight("f32", 64, 64, 4, size, native.Arena(4 * size, huge_pages=False))
    program.expert_linear(bound("linear", rows, weight="f32", act="f32", n=16, k=64), weight, x, out, routing=routing)
    with pytest.raises(native.NativeError, match="did not sort the rows by expert"):
        run(program, rows)
