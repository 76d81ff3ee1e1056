"""A small model through the executor: equal to NumPy, and the same bytes for any chunks."""

import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pytest

from infeng_core import _native

_spec = importlib.util.spec_from_file_location("tiny", Path(__file__).with_name("tiny.py"))
tiny = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny)

TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, tiny.VOCAB, 40)]
TABLE = [7, 2, 11]
FORMS = [("f32", "f32"), ("bf16", "f32"), ("int8-row", "int8"), ("int4-g64", "int8"), ("int4-g32", "int8")]


@pytest.fixture(scope="module")
def whole(reference):
    """Return {(form, kv): logits of TOKENS in one chunk on one thread}."""
    return {forms: tiny.Tiny(_native.Pool(1), reference, *forms).run((TOKENS, 0, TABLE)) for forms in FORMS}


def test_logits_equal_those_of_numpy(whole):
    expected = tiny.numpy_logits(tiny.make_weights(), TOKENS)
    assert expected.std() > 0.5
    for forms, bound in zip(FORMS, (2e-6, 0.01, 0.05, 0.4, 0.35), strict=True):
        # f32: rounding only. The others: their formats' rounding of weights, activations and cache.
        assert (whole[forms] - expected).std() < bound * expected.std(), forms


@pytest.mark.parametrize("forms", FORMS)
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_a_byte(reference, whole, forms, threads):
    model = tiny.Tiny(_native.Pool(threads), reference, *forms)
    assert np.array_equal(model.run((TOKENS, 0, TABLE)), whole[forms])


@pytest.mark.parametrize("forms", FORMS)
@pytest.mark.parametrize("cut", [[1] * 40, [16, 24], [7, 1, 20, 12]])
def test_chunks_do_not_change_a_byte(reference, whole, forms, cut):
    model = tiny.Tiny(_native.Pool(2), reference, *forms)
    ends = list(itertools.accumulate(cut))
    parts = [
        model.run((TOKENS[end - size : end], end - size, TABLE[: -(-end // 16)]))
        for size, end in zip(cut, ends, strict=True)
    ]
    assert np.array_equal(np.concatenate(parts), whole[forms])


@pytest.mark.parametrize("forms", FORMS)
def test_neighbours_do_not_change_a_byte(reference, whole, forms):
    model = tiny.Tiny(_native.Pool(2), reference, *forms)
    other = [int(t) for t in np.random.default_rng(6).integers(0, tiny.VOCAB, 40)]
    model.run((other[:20], 0, [0, 1]))
    first = model.run((TOKENS[:10], 0, TABLE[:1]), (other[20:33], 20, [0, 1, 5]), (other[:9], 0, [9]))
    second = model.run((other[33:35], 33, [0, 1, 5]), (TOKENS[10:], 10, TABLE))
    assert np.array_equal(np.concatenate([first[:10], second[2:]]), whole[forms])


def test_only_sampled_rows_get_logits(reference, whole):
    model = tiny.Tiny(_native.Pool(2), reference, samples=3)
    model.run((TOKENS[:30], 0, TABLE), samples=[])
    assert np.array_equal(model.run((TOKENS[30:], 30, TABLE), samples=[9, 0, 4]), whole["f32", "f32"][[39, 30, 34]])


def test_the_step_s_rows_choose_the_kernel(toy, steps):
    program = _native.Program(_native.Pool(2), max_rows=64, max_samples=0, max_segments=1, context=64)
    x, y = program.buffer(64), program.buffer(64)
    program.epilogue([(1, toy["fail_silently"]), (8, toy["add_one"]), (100, toy["fail_last_row"])], x, 64, y, [])
    program.finish()
    none = np.zeros(0, np.int32)

    def codes(rows):
        try:
            program.run(
                np.zeros(rows, np.int32), np.arange(rows, dtype=np.int32), np.zeros((0, 4), np.int32), none, none
            )
        except _native.NativeError as error:
            return error.code
        return "ok"

    assert [codes(rows) for rows in (1, 2, 8, 9, 64, 8, 1)] == [
        "out_of_range", "ok", "ok", "not_finite", "not_finite", "ok", "out_of_range",
    ]  # fmt: skip


def test_a_private_layout_is_packed_once_for_all_that_share_it(toy):
    pool = _native.Pool(2)
    kernel = toy["private_layout"]
    weight = tiny.Tiny.pack("f32", np.ones((32, 64), np.float32))

    def layout_and_packs():
        program = _native.Program(pool, max_rows=4, max_samples=0, max_segments=1, context=4)
        x, y, z = program.buffer(64), program.buffer(32), program.buffer(32)
        program.linear([(4, kernel)], weight, x, y)
        program.linear([(1, kernel), (4, kernel)], weight, x, z)
        program.finish()
        none = np.zeros(0, np.int32)
        program.run(np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros((0, 4), np.int32), none, none)
        return program, program.view(y)[0, :3].tolist()

    first, (layout, packs, byte) = layout_and_packs()
    assert (layout, byte) == (77, 1)  # the copy adds one to every byte
    second, shown = layout_and_packs()
    assert shown == [77, packs, 1]
    del first, second
    assert layout_and_packs()[1] == [77, packs + 1, 1]  # the copy had no reference any longer


def test_views_are_windows_into_the_program_s_memory(toy, steps):
    chain = steps(_native.Pool(1), toy["add_one"], rows=4, columns=70)
    view = chain.program.view(chain.buffers[0])
    assert (view.shape, view.strides, view.dtype) == ((4, 70), (128 * 4, 4), np.float32)
    assert view.ctypes.data % 64 == 0
    view[:] = 5
    assert set(chain.run().flat) == {6}
    program = chain.program
    del chain
    last = program.view(1)
    del program
    assert set(last.flat) == {6}  # the view keeps the program alive

    program = _native.Program(_native.Pool(1), max_rows=4, max_samples=2, max_segments=1, context=4)
    q, scale, total = program.view_activation(program.activation(100, samples=True))
    assert [array.shape for array in (q, scale, total)] == [(2, 128), (2, 2), (2, 2)]
    assert [array.dtype for array in (q, scale, total)] == [np.int8, np.float32, np.int32]


def test_scratch_memory_is_counted(toy, steps):
    small = steps(_native.Pool(1), toy["add_one"], rows=4).program.scratch_bytes
    large = steps(_native.Pool(1), toy["add_one"], rows=8).program.scratch_bytes
    assert small > 2 * 4 * 4096 * 4
    assert large - small >= 2 * 4 * 4096 * 4


def test_a_vector_off_a_line_is_copied_once_to_where_scratch_is(reference):
    program = _native.Program(_native.Pool(1), max_rows=1, max_samples=0, max_segments=1, context=16)
    x, kernels = program.buffer(64), [(1, reference["rmsnorm"])]
    memory = np.ones(256, np.float32)
    line = -memory.ctypes.data % 64 // 4
    on, off = memory[line : line + 64], memory[line + 65 : line + 129]
    before = program.scratch_bytes
    program.rmsnorm(kernels, x, on, 1e-5, x)
    assert program.scratch_bytes == before
    for _ in range(2):
        program.rmsnorm(kernels, x, off, 1e-5, x)
        assert program.scratch_bytes == before + 4 * 64


def test_ids_of_private_layouts_belong_to_their_library(build, toy):
    other = {k.name: k for k in _native.open_library(str(build("toy.c", "-DANOTHER"))).kernels}
    weight = tiny.Tiny.pack("f32", np.ones((16, 64), np.float32))
    none, kept = np.zeros(0, np.int32), []
    for kernels in (toy, other):
        program = _native.Program(_native.Pool(1), max_rows=1, max_samples=0, max_segments=1, context=4)
        x, y = program.buffer(64), program.buffer(16)
        program.linear([(1, kernels["private_layout"])], weight, x, y)
        program.finish()
        program.run(np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros((0, 4), np.int32), none, none)
        layout, packs, byte = program.view(y)[0, :3].tolist()
        assert (layout, packs >= 1, byte) == (77, True, 1)  # the second would see no pack of its own if it shared
        kept.append(program)


def test_a_kernel_has_an_instance_for_each_op_and_size_of_batch(toy, steps, expect):
    counter = toy["counter"]
    program = steps(_native.Pool(2), counter, counter, rows=8, columns=16)
    for step in range(3):
        program.run(1)
        for buffer in program.buffers[1:]:
            assert program.program.view(buffer)[0, :2].tolist() == [step, 2]
    more = steps(_native.Pool(1), counter, rows=4, columns=16)
    assert more.run(1)[0, :2].tolist() == [0, 3]
    del program
    assert more.run(1)[0, :2].tolist() == [1, 1]
    with expect("out_of_range", "counter: create returned status 4 (out_of_range) no licence for 224 outputs"):
        steps(_native.Pool(1), counter, columns=14 * 16)
    assert more.run(1)[0, 1] == 1


def test_blocks_that_lie_before_every_window_are_not_asked_for(reference, expect):
    def run(window, table):
        cache = _native.KvCache("f32", layers=1, blocks=4, kv_heads=1, head_dim=16)
        program = _native.Program(_native.Pool(1), max_rows=1, max_samples=0, max_segments=1, context=64)
        x, out = program.buffer(16), program.buffer(16)
        program.attention([(1, reference["attention_f32"])], x, cache, 0, out, heads=1, scale=0.25, window=window)
        program.finish()
        arrays = [np.array(a, np.int32) for a in ([0], [50], [[0, 1, 50, 0]], table, [])]
        program.run(*arrays)

    run(18, [-1, -1, 2, 3])  # positions 33 to 50
    for window, table in ((18, [-1, -1, -1, 3]), (19, [-1, -1, -1, 3]), (0, [-1, 1, 2, 3]), (18, [-2, 1, 2, 3])):
        with expect("invalid_argument", "the cache has 4 blocks"):
            run(window, table)


def test_an_op_needs_what_its_arguments_say_and_a_kernel_that_does_not_handle_it_is_refused(build, expect):
    kernels = {k.name: k for k in _native.open_library(str(build("toy.c"))).kernels}
    cache = _native.KvCache("f32", layers=1, blocks=4, kv_heads=1, head_dim=16)
    program = _native.Program(_native.Pool(1), max_rows=1, max_samples=0, max_segments=1, context=64)
    x, out = program.buffer(16), program.buffer(16)
    program.attention([(1, kernels["attention"])], x, cache, 0, out, heads=1, scale=0.25, window=18, softcap=2.0)
    with expect("not_handled", "toy/attention: does not handle window of attention"):
        program.finish()
