"""Adapters in the executor: right to the last bit, and the same bytes whatever runs beside them."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from engine_parts import MakeEngine
from infeng_profile import profile as profiled
from lora_parts import Formula, Kind, Row, random_adapter, run

from infeng_core import Engine
from infeng_core.backends.native.binding import Binder
from infeng_core.errors import KernelError

TOKENS = [int(t) for t in np.random.default_rng(5).integers(2, 300, 11)]
DTYPES = ("f32", "bf16", "int8")
NORMS = ("norm", "layers.0.attn_norm", "layers.1.mlp_norm")
KINDS = {
    "rank 1": Kind(ranks=(1,)),
    "odd ranks": Kind(ranks=(8, 3, 17, 0, 64)),
    "rank 256": Kind(ranks=(256, 16)),
    "q and v only": Kind(targets=("qkv_proj",), ranks=(8, 0, 8)),
    "dora": Kind(ranks=(8, 0, 5), dora=True),
    "bias": Kind(ranks=(4, 0), bias=True),
    "dora and bias": Kind(dora=True, bias=True),
    "embedding": Kind(targets=("o_proj",), embedding=9),
    "saved norms": Kind(targets=("down_proj",), saved=NORMS),
    "saved head": Kind(saved=("lm_head",)),
    "saved embeddings": Kind(targets=("qkv_proj",), saved=("embed", "lm_head")),
}


of_storages = pytest.mark.parametrize(
    "dtype",
    ["int8", pytest.param("f32", marks=pytest.mark.slow), pytest.param("bf16", marks=pytest.mark.nightly)],
)


@pytest.fixture
def engine_for(make_engine: MakeEngine):
    """Return ``make(dtype, **settings)``: every row of a step may be sampled."""

    def make(dtype: str, **settings: object) -> Engine:
        settings = {"scheduler__max_running": 128, "kv_cache__dtype": "f32", "model__format": "f32", **settings}
        return make_engine(adapters__dtype=dtype, **settings)

    return make


@pytest.mark.slow
@of_storages
def test_every_kind_of_adapter_equals_its_formula_to_the_byte(engine_for, dtype: str):
    engine = engine_for(dtype)
    base = run(engine, [Row(TOKENS)])[0]
    assert np.array_equal(base, Formula(engine.model).logits(TOKENS))
    for name, kind in KINDS.items():
        adapter = random_adapter(engine.model, dtype, kind, seed=3)
        found = run(engine, [Row(TOKENS, [(engine.executable.load_adapter(adapter), 1.0)])])[0]
        assert np.array_equal(found, Formula(engine.model, [(adapter, 1.0)]).logits(TOKENS)), name
        assert np.abs(found - base).max() > 0.1, f"{name} changes nothing"
    assert np.array_equal(run(engine, [Row(TOKENS)])[0], base)


COMBINED = [
    ("two of one kind", [(Kind(), 0.7), (Kind(ranks=(4,)), -0.4)]),
    ("three of different ranks", [(Kind(ranks=(17, 3)), 1.0), (Kind(targets=("o_proj",)), 2.0), (Kind(), 0.25)]),
    ("with DoRA", [(Kind(ranks=(3,)), 0.5), (Kind(dora=True, bias=True), 1.0)]),
    ("embeddings of both", [(Kind(embedding=5), 0.5), (Kind(targets=(), embedding=20), 1.5)]),
    ("one with modules of its own", [(Kind(saved=("lm_head", "norm")), 1.0), (Kind(), 0.5)]),
]


@of_storages
def test_adapters_combine_in_the_order_of_the_request(engine_for, dtype: str):
    engine = engine_for(dtype)
    for name, kinds in COMBINED:
        packed = [random_adapter(engine.model, dtype, kind, seed) for seed, (kind, _) in enumerate(kinds)]
        weights = [weight for _, weight in kinds]
        handles = [engine.executable.load_adapter(adapter) for adapter in packed]
        found = run(engine, [Row(TOKENS, list(zip(handles, weights, strict=True)))])[0]
        expected = Formula(engine.model, list(zip(packed, weights, strict=True))).logits(TOKENS)
        assert np.array_equal(found, expected), name


FORMATS = [("f32", "bf16"), ("bf16", "int8"), ("int8-row", "f32"), ("int4-g64", "int8"), ("int4-g32", "bf16")]
MIXED = [
    [],
    [(Kind(), 1.0)],
    [(Kind(ranks=(64, 1), dora=True, bias=True), 1.0)],
    [(Kind(ranks=(16,)), 0.5), (Kind(ranks=(3, 0, 9), embedding=4), 1.5)],
    [],
    [(Kind(saved=("embed", "lm_head", *NORMS)), 1.0), (Kind(ranks=(8,)), 0.5)],
    [(Kind(targets=("lm_head",), ranks=(24,), saved=("norm",)), 1.0)],
    [(Kind(), 1.0)],
]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    random = np.random.default_rng(9)
    return [random.integers(2, 300, 1 + 7 * i % 19).tolist() for i in range(len(MIXED))]


def rows_of(engine: Engine, dtype: str, prompts: list[list[int]]) -> list[Row]:
    """Return a row of every kind; the first and the last adapter are one."""
    made: dict[str, object] = {}

    def handle(kind: Kind) -> object:
        if repr(kind) not in made:
            packed = random_adapter(engine.model, dtype, kind, seed=11)
            made[repr(kind)] = engine.executable.load_adapter(packed)
        return made[repr(kind)]

    return [Row(p, [(handle(k), w) for k, w in kinds]) for p, kinds in zip(prompts, MIXED, strict=True)]


@pytest.mark.parametrize(("weights", "dtype"), FORMATS)
def test_a_mixed_batch_equals_each_request_alone(engine_for, prompts, weights: str, dtype: str):
    engine = engine_for(dtype, model__format=weights, kv_cache__dtype="int8")
    rows = rows_of(engine, dtype, prompts)
    alone = [run(engine, [row])[0] for row in rows]
    for row, found in zip(rows, alone, strict=True):
        assert np.array_equal(found, run(engine, [Row(row.tokens)])[0]) is not bool(row.adapters)
    orders = [list(range(len(rows))), [7, 1, 0, 4, 3, 2, 6, 5], [5, 4, 6, 3, 5, 1], [2, 2, 0, 2]]
    for order in orders:
        for chunk in (1 << 20, 5, 1):
            together = run(engine, [rows[i] for i in order], chunk=chunk)
            for i, found in zip(order, together, strict=True):
                assert np.array_equal(found, alone[i]), (order, chunk, i)
    last = run(engine, rows, sampled=False)  # only some rows are sampled, and in some steps none
    assert all(np.array_equal(found[0], whole[-1]) for found, whole in zip(last, alone, strict=True))
    last = run(engine, rows, chunk=3, sampled=False)
    assert all(np.array_equal(found[0], whole[-1]) for found, whole in zip(last, alone, strict=True))


@pytest.mark.parametrize(
    ("weights", "dtype"),
    [pytest.param(*each, marks=[pytest.mark.nightly] * (each not in FORMATS[2:4])) for each in FORMATS],
)
def test_threads_and_kernel_libraries_do_not_change_a_byte(engine_for, prompts, weights: str, dtype: str):
    settings = {"model__format": weights, "kv_cache__dtype": "int8"}
    engine = engine_for(dtype, **settings, kernels__order=["reference"])
    expected = run(engine, rows_of(engine, dtype, prompts))
    for more in ({}, {"threads__count": 2}, {"threads__count": 3}, {"kernels__order": ["avx2", "reference"]}):
        engine = engine_for(dtype, **settings, **more)
        found = run(engine, rows_of(engine, dtype, prompts))
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True)), more


def test_storage_types_agree_within_their_precision(engine_for):
    found = {}
    for dtype in DTYPES:
        engine = engine_for(dtype)
        packed = random_adapter(engine.model, dtype, Kind(ranks=(8, 16)), seed=3)
        found[dtype] = run(engine, [Row(TOKENS, [(engine.executable.load_adapter(packed), 1.0)])])[0]
    scale = found["f32"].std()
    assert 0 < (found["bf16"] - found["f32"]).std() < 0.02 * scale
    assert 0 < (found["int8"] - found["f32"]).std() < 0.05 * scale


def test_splitting_an_epilogue_off_keeps_the_bytes(engine_for, prompts, monkeypatch):
    engine = engine_for("int8", model__format="int4-g64")
    expected = run(engine, rows_of(engine, "int8", prompts))
    monkeypatch.setattr(Binder, "fused", lambda *arguments: 0)
    split = engine_for("int8", model__format="int4-g64")
    assert any("lora" in op.detail for op in split.bound() if op.op == "epilogue" and "down_proj" in op.detail)
    found = run(split, rows_of(split, "int8", prompts))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_engine_without_adapters_allocates_nothing_for_them(engine_for):
    engine = engine_for("int8", adapters__max_resident=0, model__format="int4-g64")
    with_adapters = engine_for("int8", model__format="int4-g64")
    assert not any("lora" in op.detail or op.op == "shrink" for op in engine.bound())
    assert any(op.op == "shrink" for op in with_adapters.bound())
    assert np.array_equal(run(engine, [Row(TOKENS)])[0], run(with_adapters, [Row(TOKENS)])[0])
    assert (engine.executable.max_stacked_rank, with_adapters.executable.max_stacked_rank) == (0, 1024)


def test_the_memory_of_an_adapter_is_freed_with_the_last_reference(engine_for):
    engine = engine_for("int8")
    packed = random_adapter(engine.model, "int8", Kind(ranks=(256,)), seed=1)
    handle = engine.executable.load_adapter(packed)
    assert packed.nbytes <= handle.nbytes < packed.nbytes + 64 * 100
    references = sys.getrefcount(handle)
    row = Row(TOKENS, [(handle, 1.0)])
    first = run(engine, [row])[0]
    assert sys.getrefcount(handle) == references + 1  # the row's own; the program kept none
    del row, handle
    base = run(engine, [Row(TOKENS)])[0]
    again = engine.executable.load_adapter(packed)  # most likely where the first one was
    assert np.array_equal(run(engine, [Row(TOKENS, [(again, 1.0)])])[0], first)
    assert not np.array_equal(base, first)

    before = resident_bytes()
    for _ in range(200):
        engine.executable.load_adapter(packed)
    assert resident_bytes() - before < 20 * packed.nbytes


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_profile_counts_the_products_of_adapters(engine_for):
    engine = engine_for("f32", threads__count=2)
    packed = random_adapter(engine.model, "f32", Kind(ranks=(6,)), seed=1)
    row = Row(TOKENS, [(engine.executable.load_adapter(packed), 1.0)])
    with profiled(engine) as base:
        run(engine, [Row(TOKENS)])
    with profiled(engine) as profile:
        run(engine, [row])
    assert not any(op.op == "shrink" for op in base.ops)
    shrink = [op for op in profile.ops if op.op == "shrink"]
    assert sum(op.calls for op in shrink) == len(packed.tensors)
    layers = {"lm_head": 1}
    for op in shrink:
        name = op.detail.split()[0].replace("*", "0")
        tensor, times = packed.tensors[name], layers.get(name, engine.model.config.layers)
        k = engine.model.tensors["embed" if name == "lm_head" else name].k
        assert (op.macs, op.bytes) == (times * len(TOKENS) * tensor.rank * k, times * tensor.a.nbytes)
    added = {op.detail: op.macs for op in profile.ops if op.op == "linear"}
    plain = {op.detail: op.macs for op in base.ops if op.op == "linear"}
    for name, tensor in packed.tensors.items():
        if name.startswith("layers.1"):
            continue
        [detail] = [d for d in added if d.split()[0] == ("embed" if name == "lm_head" else name.replace(".0.", ".*."))]
        products = sum(part.panels * 16 * part.rank for part in tensor.parts)
        assert added[detail] - plain[detail] == layers.get(name, 2) * len(TOKENS) * products


def test_adapters_that_a_weight_cannot_scale_are_refused_before_a_step(engine_for):
    engine = engine_for("f32")
    for name, kind in KINDS.items():
        packed = random_adapter(engine.model, "f32", kind, seed=3)
        handle = engine.executable.load_adapter(packed)
        assert packed.is_whole is (kind.dora or kind.bias or bool(kind.saved)), name
        with pytest.raises(KernelError, match="its weight is 1") if packed.is_whole else nullcontext():
            run(engine, [Row(TOKENS, [(handle, 0.5)])])
    assert random_adapter(engine.model, "f32", Kind(targets=(), embedding=17)).stacked_rank == 32
    assert random_adapter(engine.model, "f32", Kind(targets=())).stacked_rank == 0
