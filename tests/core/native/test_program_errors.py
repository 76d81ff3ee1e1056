"""Refusals of a program: ops that do not fit together when it is built, bad arrays when it runs."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from infeng_core import _native

_spec = importlib.util.spec_from_file_location("tiny", Path(__file__).with_name("tiny.py"))
tiny = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny)


@pytest.fixture(scope="module")
def model(reference):
    """Return a model of at most 48 rows, 6 samples, 4 segments, 24 blocks."""
    return tiny.Tiny(_native.Pool(2), reference, samples=6)


def good():
    """Return arrays that the model accepts: a chunk of 20 rows and a row at position 33."""
    return {
        "tokens": np.zeros(21, np.int32),
        "positions": np.array([*range(20), 33], np.int32),
        "segments": np.array([[0, 20, 0, 0], [20, 21, 33, 2]], np.int32),
        "block_tables": np.array([3, 4, 5, 6, 7], np.int32),
        "sample_rows": np.array([19, 20], np.int32),
    }


WRONG = {
    "token past the vocabulary": ("tokens", 4, 40, "tokens[4] is 40, the vocabulary has 40"),
    "negative token": ("tokens", 20, -1, "tokens[20] is -1"),
    "position past the context": ("positions", 20, 96, "positions[20] is 96, the context has 96"),
    "negative position": ("positions", 0, -1, "positions[0] is -1"),
    "position that is not the segment's": ("positions", 5, 6, "segments[0]: row 5 is at position 6"),
    "first segment starts late": ("segments", (0, 0), 1, "segments[0]: rows [1, 20) do not continue at row 0"),
    "segments overlap": ("segments", (1, 0), 19, "segments[1]: rows [19, 21) do not continue at row 20"),
    "a gap between segments": ("segments", (0, 1), 19, "segments[1]: rows [20, 21) do not continue at row 19"),
    "an empty segment": ("segments", (1, 1), 20, "segments[1]: rows [20, 20)"),
    "a segment past the rows": ("segments", (1, 1), 22, "segments[1]: rows [20, 22)"),
    "wrong first position": ("segments", (1, 2), 34, "segments[1]: row 20 is at position 33, the segment says 34"),
    "a huge first position": ("segments", (1, 2), 2**31 - 1, "segments[1]: row 20 is at position 33"),
    "negative table index": ("segments", (1, 3), -1, "segments[1]: 3 blocks from index -1 on"),
    "table too short": ("segments", (1, 3), 3, "segments[1]: 3 blocks from index 3 on, block_tables has 5"),
    "a huge table index": ("segments", (1, 3), 2**31 - 1, "segments[1]: 3 blocks from index 2147483647 on"),
    "block past the cache": ("block_tables", 1, 24, "block_tables[1] is 24, the cache has 24 blocks"),
    "negative block": ("block_tables", 4, -5, "block_tables[4] is -5"),
    "two writers of a block": ("block_tables", 4, 4, "segments[1]: writes to block 4, which this step already"),
    "sample row past the rows": ("sample_rows", 1, 21, "sample_rows[1] is 21, the batch has 21 rows"),
    "negative sample row": ("sample_rows", 0, -1, "sample_rows[0] is -1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_named(model, expect, case):
    name, index, value, text = WRONG[case]
    arrays = good()
    arrays[name][index] = value
    with expect("invalid_argument", text):
        model.program.run(**arrays)
    model.program.run(**good())


def test_a_block_may_be_read_by_two_segments(model):
    arrays = good()
    arrays["block_tables"][2:4] = (3, 4)[::-1]  # the second segment reads blocks that the first writes
    model.program.run(**arrays)


def test_sizes_beyond_the_program_s_are_named(model, expect):
    program = model.program
    empty = np.zeros(0, np.int32)
    with expect("invalid_argument", "1 to 48 rows, not 0"):
        program.run(**{**good(), "tokens": empty})
    with expect("invalid_argument", "1 to 48 rows, not 49"):
        program.run(**{**good(), "tokens": np.zeros(49, np.int32)})
    with expect("invalid_argument", "positions: 20 for 21 tokens"):
        program.run(**{**good(), "positions": np.arange(20, dtype=np.int32)})
    with expect("invalid_argument", "sample_rows: at most 6, not 7"):
        program.run(**{**good(), "sample_rows": np.zeros(7, np.int32)})
    with expect("invalid_argument", "segments: at most 4, not 5"):
        program.run(**{**good(), "segments": np.zeros((5, 4), np.int32)})
    with expect("invalid_argument", "segments: cover 0 of 21 rows"):
        program.run(**{**good(), "segments": np.zeros((0, 4), np.int32)})
    with expect("invalid_argument", "segments: cover 20 of 21 rows"):
        program.run(**{**good(), "segments": good()["segments"][:1]})


@pytest.mark.parametrize("name", ["tokens", "positions", "segments", "block_tables", "sample_rows"])
def test_arrays_are_contiguous_int32(model, expect, name):
    array = good()[name]
    wrong = [array.astype(np.int64), array.astype(np.float32), array[None], np.repeat(array, 2, axis=-1)[..., ::2]]
    wrong.append(array.astype(">i4"))
    for bad in wrong:
        with expect("invalid_argument", f"{name}: needs a contiguous int32 array"):
            model.program.run(**{**good(), name: bad})


class Parts:
    """A program with a buffer of each sort, to add wrong ops to."""

    def __init__(self, threads=1):
        self.p = _native.Program(_native.Pool(threads), max_rows=8, max_samples=4, max_segments=2, context=64)
        self.x, self.y, self.wide = self.p.buffer(64), self.p.buffer(64), self.p.buffer(128)
        self.sampled = self.p.buffer(64, samples=True)
        self.q = self.p.activation(64)
        self.cache = _native.KvCache("f32", layers=2, blocks=2, kv_heads=2, head_dim=16)
        self.weight = tiny.Tiny.pack("f32", np.ones((64, 64), np.float32))
        self.int4 = tiny.Tiny.pack("int4-g64", np.ones((64, 64), np.float32))


def test_an_op_over_rows_gets_exactly_its_operands(reference, expect):
    t = Parts()
    kernels = [(8, reference["epilogue"])]
    with expect("invalid_argument", "epilogue: has no operand y"):
        t.p.row_op("epilogue", kernels, 64, t.y, operands={"x": t.x, "y": t.x})
    with expect("invalid_argument", "epilogue: has 1 operands"):
        t.p.row_op("epilogue", kernels, 64, t.y, operands={})
    with expect("invalid_argument", "rope: is no op over rows alone"):
        t.p.row_op("rope", kernels, 64, t.y, operands={})
    with expect("unknown_name", "unknown op"):
        t.p.row_op("groupnorm", kernels, 64, t.y, operands={"x": t.x})
    with expect("invalid_argument", "has 64 columns, the op needs 128"):
        t.p.row_op("epilogue", kernels, 128, t.y, operands={"x": t.x})
    with expect("invalid_argument", "epilogue: its rows cannot be gathered"):
        t.p.row_op("epilogue", kernels, 64, t.sampled, operands={"x": t.x}, gather_samples=True)
    t.p.row_op("epilogue", kernels, 64, t.y, operands={"x": t.x})
    assert t.p.ops()[0].op == "epilogue"


def test_a_layernorm_gets_a_weight_and_a_bias_of_its_width_and_may_read_sampled_rows(reference, expect):
    t, ones = Parts(), np.ones(64, np.float32)
    kernels, operands = [(8, reference["layernorm"])], {"x": t.x, "weight": ones, "bias": ones, "eps": 1e-5}
    with expect("invalid_argument", "layernorm: has 4 operands"):
        t.p.row_op("layernorm", kernels, 64, t.y, operands={"x": t.x, "weight": ones, "eps": 1e-5})
    with expect("invalid_argument", "layernorm: has no operand row_index"):
        t.p.row_op("layernorm", kernels, 64, t.y, operands=operands | {"row_index": t.x})
    with expect("invalid_argument", "bias"):
        t.p.row_op("layernorm", kernels, 64, t.y, operands=operands | {"bias": ones[:32]})
    with expect("invalid_argument"):
        t.p.row_op("layernorm", kernels, 64, t.sampled, operands=operands)
    with expect("invalid_argument"):
        t.p.row_op("layernorm", kernels, 64, t.y, gather_samples=True, operands=operands)
    t.p.row_op("layernorm", kernels, 64, t.sampled, gather_samples=True, operands=operands)
    t.p.row_op("layernorm", kernels, 64, t.y, operands=operands)
    assert [op.op for op in t.p.ops()] == ["layernorm", "layernorm"]


def test_operands_must_fit(reference, expect):
    t = Parts()
    p, linear, norm = t.p, [(8, reference["linear_f32"])], [(8, reference["rmsnorm"])]
    ones = np.ones(64, np.float32)
    with expect("invalid_argument", "there is no buffer 99"):
        p.linear(linear, t.weight, 99, t.y)
    with expect("invalid_argument", "there is no buffer -1"):
        p.linear(linear, t.weight, -1, t.y)
    with expect("invalid_argument", "is an int8 activation, the op needs an f32 buffer"):
        p.linear(linear, t.weight, t.q, t.y)
    with expect("invalid_argument", "is an f32 buffer, the op needs an int8 activation"):
        p.linear([(8, reference["linear_int4g64"])], t.int4, t.x, t.y)
    with expect("invalid_argument", "has 128 columns, the op needs 64"):
        p.linear(linear, t.weight, t.x, t.wide)
    with expect("invalid_argument", "both input and output"):
        p.linear(linear, t.weight, t.x, t.x)
    with expect("invalid_argument", "has a row for each sampled row"):
        p.linear(linear, t.weight, t.x, t.sampled)
    with expect("invalid_argument", "neither an output nor a quantize step"):
        p.linear(linear, t.weight, t.x, None)
    with expect("invalid_argument", "has 63 values, the op needs 64"):
        p.linear(linear, t.weight, t.x, t.y, [_native.Epilogue.bias(ones[1:])])
    with expect("invalid_argument", "needs a float32 array"):
        p.rmsnorm(norm, t.x, ones.astype(np.float64), 1e-5, t.y)
    with expect("invalid_argument", "has 64 columns, the op needs 32"):
        p.rmsnorm(norm, t.x, ones[:32], 1e-5, t.y)
    with expect("invalid_argument", "silu_mul: 48 columns are not pairs"):
        p.linear(linear, tiny.Tiny.pack("f32", np.ones((48, 64), np.float32)), t.x, t.y, [_native.Epilogue.silu_mul()])
    with expect("not_fused", "reference/rmsnorm: does not fuse bias"):
        p.rmsnorm(norm, t.x, ones, 1e-5, t.y, [_native.Epilogue.bias(ones)])
    assert p.op_count() == 0  # an op that was refused left nothing behind


def test_heads_must_fit(reference, expect):
    t = Parts()
    table = np.ones((64, 8), np.float32)
    shape = {"heads": 2, "kv_heads": 2, "head_dim": 16, "k_column": 32, "cos": table, "sin": table}
    for wrong in ({"k_column": 40}, {"k_column": 48}, {"heads": 3}, {"head_dim": 8}, {"sin": table[:2]}):
        with expect("invalid_argument", "rope"):
            t.p.rope([(8, reference["rope"])], t.x, **{**shape, **wrong})
    append = [(8, reference["kv_append_f32"])]
    with expect("invalid_argument", "no layer 2"):
        t.p.kv_append(append, t.x, t.cache, 2, k_column=0, v_column=32)
    with expect("invalid_argument", "kv_append: v"):
        t.p.kv_append(append, t.x, t.cache, 0, k_column=0, v_column=48)
    attention = [(8, reference["attention_f32"])]
    with expect("invalid_argument", "3 heads cannot share 2 kv heads"):
        t.p.attention(attention, t.x, t.cache, 0, t.y, heads=3, scale=0.25)
    with expect("invalid_argument", "window"):
        t.p.attention(attention, t.x, t.cache, 0, t.y, heads=4, scale=0.25, window=-1)
    for wrong in (-1, 1):
        with expect("invalid_argument", f"sequences have 1 tables of blocks, there is no table {wrong}"):
            t.p.attention(attention, t.x, t.cache, 0, t.y, heads=4, scale=0.25, table=wrong)
        with expect("invalid_argument", f"there is no table {wrong}"):
            t.p.kv_append(append, t.x, t.cache, 0, k_column=0, v_column=32, table=wrong)
    assert t.p.op_count() == 0


@pytest.mark.parametrize(
    ("index", "block", "text"),
    [
        (0, -1, "block_tables[0] is -1"),
        (5, -1, "block_tables[5] is -1"),
        (6, 8, "block_tables[6] is 8, the cache has 8 blocks"),
        (6, 2, "writes to block 2, which this step already writes to"),
        (None, 0, "segments[0]: 3 blocks from index 4 on, block_tables has 6"),
    ],
)
def test_each_table_has_its_own_blocks_and_only_what_no_window_of_it_reaches_may_be_missing(
    reference, expect, index, block, text
):
    program = _native.Program(_native.Pool(1), max_rows=8, max_samples=4, max_segments=2, context=64, tables=2)
    cache = _native.KvCache("f32", layers=1, blocks=8, kv_heads=2, head_dim=16)
    x, y = program.buffer(96), program.buffer(32)
    for table, window in ((0, 0), (1, 5)):
        append, attention = [(8, reference["kv_append_f32"])], [(8, reference["attention_f32"])]
        program.kv_append(append, x, cache, 0, k_column=32, v_column=64, table=table)
        program.attention(attention, x, cache, 0, y, heads=2, scale=0.25, window=window, table=table)
    program.finish()
    step = {
        "tokens": np.zeros(1, np.int32),
        "positions": np.array([33], np.int32),
        "segments": np.array([[0, 1, 33, 0]], np.int32),
        "sample_rows": np.zeros(0, np.int32),
    }
    tables = np.array([0, 1, 2, -7, -1, 3, 4], np.int32)  # the second begins at 64 / 16; position 33 sees from 29 on
    program.run(**step, block_tables=tables)
    if index is None:
        tables = tables[:6].copy()
    else:
        tables[index] = block
    with expect("invalid_argument", text):
        program.run(**step, block_tables=tables)


def test_kernels_must_cover_all_rows_and_be_of_the_op(reference, toy, expect):
    t = Parts()
    with expect("invalid_argument", "bound up to 7 rows, the program has up to 8"):
        t.p.linear([(7, reference["linear_f32"])], t.weight, t.x, t.y)
    with expect("invalid_argument", "bound up to 0 rows"):
        t.p.linear([], t.weight, t.x, t.y)
    with expect("invalid_argument", "do not ascend"):
        t.p.linear([(8, reference["linear_f32"])] * 2, t.weight, t.x, t.y)
    with expect("invalid_argument", "is a kernel for rmsnorm, not for linear"):
        t.p.linear([(8, reference["rmsnorm"])], t.weight, t.x, t.y)
    with pytest.raises(TypeError):
        t.p.linear([(8, None)], None, t.x, t.y)
    odd = t.p.buffer(13 * 16)
    t.p.epilogue([(8, toy["add_one"])], odd, 13 * 16, odd, [])
    with expect("not_accepted", "toy/add_one: does not accept epilogue for 1 to 8 rows (n 208"):
        t.p.finish()


def test_a_program_is_built_then_finished_then_run(toy, steps, expect):
    t = Parts()
    none = np.zeros(0, np.int32)
    with expect("invalid_argument", "has no ops"):
        t.p.finish()
    with expect("not_finished"):
        t.p.run(none, none, np.zeros((0, 4), np.int32), none, none)
    program = steps(_native.Pool(1), toy["add_one"]).program
    with expect("finished"):
        program.finish()
    with expect("finished"):
        program.buffer(64)
    with expect("finished"):
        program.epilogue([(64, toy["add_one"])], 0, 4096, 1, [])


def test_a_kernel_s_impossible_workspace_is_an_error(toy, steps, expect):
    with expect("bad_workspace", "toy/greedy"):
        steps(_native.Pool(1), toy["greedy"])


@pytest.mark.parametrize("name", ["max_rows", "max_samples", "max_segments", "context"])
def test_impossible_limits_are_errors(expect, name):
    limits = {"max_rows": 8, "max_samples": 1, "max_segments": 1, "context": 8}
    for value in (-1, 1 << 40):
        with expect("invalid_argument", name):
            _native.Program(_native.Pool(1), **{**limits, name: value})


def test_views_want_the_right_sort(expect):
    t = Parts()
    with expect("invalid_argument", "use view_activation()"):
        t.p.view(t.q)
    with expect("invalid_argument", "use view()"):
        t.p.view_activation(t.x)
    with expect("invalid_argument", "no buffer 50"):
        t.p.view(50)
