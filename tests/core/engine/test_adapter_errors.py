"""What a program refuses of adapters, when they are loaded and when a step names them; and that it goes on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from lora_parts import Kind, Row, random_adapter, run

from infeng_core import Engine
from infeng_core.batch import AdapterRows, Batch
from infeng_core.errors import AdapterError, KernelError
from infeng_core.formats.adapters.packed import LoraTensor, PackedAdapter

QKV = "layers.0.qkv_proj"
KIND = Kind(ranks=(8, 4, 20), embedding=6, saved=("lm_head", "norm"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, tiny) -> Engine:
    with Engine(tiny, overrides={"adapters.dtype": "int8", "threads.count": 1, "model.format": "f32"}) as made:
        yield made


@pytest.fixture(scope="module")
def good(engine: Engine) -> PackedAdapter:
    return random_adapter(engine.model, "int8", KIND, seed=2)


def with_tensor(adapter: PackedAdapter, **changes: object) -> PackedAdapter:
    return replace(adapter, tensors={**adapter.tensors, QKV: replace(adapter.tensors[QKV], **changes)})


def with_part(adapter: PackedAdapter, index: int = 1, **changes: object) -> PackedAdapter:
    parts = list(adapter.tensors[QKV].parts)
    parts[index] = replace(parts[index], **changes)
    return with_tensor(adapter, parts=tuple(parts))


def wide(adapter: PackedAdapter) -> PackedAdapter:
    """Return an adapter with more stacked rank rows than u has columns."""
    a = np.zeros(65 * 16 * (4 + 64), np.uint8)
    return with_tensor(adapter, rank=1040, a=a, scaling=np.zeros(1040, np.float32))


def saved(adapter: PackedAdapter, **changes: object) -> PackedAdapter:
    return replace(adapter, saved_tensors={"lm_head": replace(adapter.saved_tensors["lm_head"], **changes)})


PART = {
    "a rank below 0": ({"rank": -1}, "a rank is 0 to 256, not -1"),
    "a rank past the largest": ({"rank": 257}, "a rank is 0 to 256, not 257"),
    "columns before u": ({"u_column": -1}, "projection 1: reads columns [-1, 3) of 32"),
    "columns past the stacked rank": ({"u_column": 29}, "reads columns [29, 33) of 32"),
    "panels before the first": ({"first_panel": -1}, "panels from -1 on"),
    "panels past the last": ({"first_panel": 7}, "2 panels from 7 on in steps of 1 do not fit in 8"),
    "far steps": ({"panel_step": 2**40}, "in steps of 1099511627776 do not fit"),
    "no step": ({"panel_step": 0}, "in steps of 0 do not fit"),
    "no panels": ({"panels": 0}, "0 panels from 4 on"),
    "more panels than b": ({"panels": 3}, "b has 128 bytes, not 192"),
    "another rank than b": ({"rank": 3}, "b has 128 bytes, not 96"),
    "b of another type": ({"b": np.zeros((2, 4, 16), np.float32)}, "b: needs a contiguous int8 array"),
    "b that is not in one piece": ({"b": np.zeros((2, 4, 32), np.int8)[:, :, ::2]}, "b: needs a contiguous int8"),
    "no scales": ({"b_scale": None}, "b_scale has 0 bytes, not 64"),
    "few scales": ({"b_scale": np.ones(31, np.uint16)}, "b_scale has 62 bytes, not 64"),
    "scales in float32": ({"b_scale": np.ones(32, np.float32)}, "b_scale: needs a contiguous uint16 array"),
    "few row scales": ({"row_scale": np.ones(16, np.float32)}, "row_scale has 64 bytes, not 128"),
    "a long bias": ({"bias": np.ones(33, np.float32)}, "bias has 132 bytes, not 128"),
}
WHOLE = {
    "a tensor that the model has not": (
        lambda g: replace(g, tensors={"layers.2.o_proj": g.tensors[QKV]}), "layers.2.o_proj: the model has no such"),
    "the embeddings as a linear": (lambda g: replace(g, tensors={"embed": g.tensors[QKV]}), "embed: the model has no"),
    "a tensor of another width": (
        lambda g: replace(g, tensors={"layers.0.down_proj": g.tensors[QKV]}), "layers.0.down_proj: a has"),
    "a truncated a": (lambda g: with_tensor(g, a=g.tensors[QKV].a[:-1]), "a has 2175 bytes, not 2176"),
    "a of another type": (lambda g: with_tensor(g, a=g.tensors[QKV].a.view(np.int8)), "a: needs a contiguous uint8"),
    "scaling of another rank": (
        lambda g: with_tensor(g, scaling=np.ones(16, np.float32)), "scaling has 64 bytes, not 128"),
    "a negative stacked rank": (lambda g: with_tensor(g, rank=-1), "-1 stacked rank rows"),
    "a stacked rank past u": (wide, "1040 stacked rank rows, at most 1024"),
    "many projections": (
        lambda g: with_tensor(g, parts=g.tensors[QKV].parts * 2), "6 projections, at most 4 are possible"),
    "an embedding of another vocabulary": (
        lambda g: replace(g, embedding=replace(g.embedding, a=g.embedding.a[1:])), "embedding: a has 7656 bytes"),
    "an embedding of no rank": (lambda g: replace(g, embedding=replace(g.embedding, rank=0)), "a rank is 1 to 256"),
    "an embedding of another width": (
        lambda g: replace(g, embedding=replace(g.embedding, part=g.tensors[QKV].parts[0])), "embedding, projection 0"),
    "a saved tensor of another shape": (lambda g: saved(g, n=319), "lm_head: is f32 319x64, the model's own is"),
    "a saved tensor that nobody has": (
        lambda g: replace(g, saved_tensors={QKV: g.saved_tensors["lm_head"]}), "no such module that an adapter can"),
    "a matrix for a vector": (
        lambda g: replace(g, saved_tensors={"norm": g.saved_tensors["lm_head"]}), "norm: is a vector, not a matrix"),
    "a vector for a matrix": (
        lambda g: replace(g, saved_vectors={"embed": g.saved_vectors["norm"]}), "embed: is a matrix, not a vector"),
    "a saved vector of another size": (
        lambda g: replace(g, saved_vectors={"norm": g.saved_vectors["norm"][:-1]}), "norm: the vector has 252 bytes"),
    "a saved vector in double": (
        lambda g: replace(g, saved_vectors={"norm": np.ones(64)}), "a saved vector: needs a contiguous float32"),
}  # fmt: skip


@pytest.mark.parametrize("case", PART)
def test_a_projection_that_does_not_fit_is_named(engine: Engine, good: PackedAdapter, case: str):
    changes, text = PART[case]
    with pytest.raises(AdapterError, match="it does not fit this model") as caught:
        engine.executable.load_adapter(with_part(good, **changes))
    assert text in str(caught.value), str(caught.value)


@pytest.mark.parametrize("case", WHOLE)
def test_a_tensor_that_does_not_fit_is_named(engine: Engine, good: PackedAdapter, case: str):
    change, text = WHOLE[case]
    with pytest.raises(AdapterError, match="it does not fit this model") as caught:
        engine.executable.load_adapter(change(good))
    assert text in str(caught.value), str(caught.value)


def test_an_adapter_for_another_base_type_or_engine_is_refused(engine: Engine, good: PackedAdapter, make_engine):
    with pytest.raises(AdapterError, match="packed for the base 0123456789ab, this one is"):
        engine.executable.load_adapter(replace(good, base="0123456789abcdef"))
    with pytest.raises(AdapterError, match="stored as bf16, the engine's adapters as int8"):
        engine.executable.load_adapter(random_adapter(engine.model, "bf16"))
    without = make_engine(adapters__max_resident=0, model__format="f32")
    with pytest.raises(AdapterError, match=r"made without adapters: set adapters\.max_resident above 0"):
        without.executable.load_adapter(good)


def step(engine: Engine, adapters: list[object], rows: int = 4, samples: list[int] | None = None) -> np.ndarray:
    """Run one sequence of ``rows`` tokens."""
    samples = list(range(rows)) if samples is None else samples
    tokens, positions = np.arange(5, 5 + rows, dtype=np.int32), np.arange(rows, dtype=np.int32)
    segments, tables = np.array([[0, rows, 0, 0]], np.int32), np.array([1], np.int32)
    batch = Batch([], tokens, positions, segments, tables, np.array(samples, np.int32), adapters)
    return engine.executable.run(batch).copy()


def test_a_step_that_names_adapters_wrongly_is_refused_and_the_next_one_runs(engine: Engine, good, make_engine):
    plain = engine.executable.load_adapter(random_adapter(engine.model, "int8", Kind(), seed=3))
    own = engine.executable.load_adapter(good)
    dora = engine.executable.load_adapter(random_adapter(engine.model, "int8", Kind(dora=True), seed=4))
    shifted = engine.executable.load_adapter(random_adapter(engine.model, "int8", Kind(bias=True), seed=4))
    huge = engine.executable.load_adapter(random_adapter(engine.model, "int8", Kind(ranks=(200,)), seed=5))
    other = make_engine(model__format="f32")
    foreign = other.executable.load_adapter(random_adapter(other.model, "int8", Kind(), seed=3))
    wrong = {
        "rows [0, 5) of 4": [(0, 5, plain, 1.0)],
        "rows [-1, 2) of 4": [(-1, 2, plain, 1.0)],
        "rows [2, 2) of 4": [(2, 2, plain, 1.0)],
        "rows [0, 2) are not behind [2, 4)": [(2, 4, plain, 1.0), (0, 2, plain, 1.0)],
        "rows [1, 3) are not behind [0, 2)": [(0, 2, plain, 1.0), (1, 3, own, 1.0)],
        "adapters[0]: its weight is not finite": [(0, 2, plain, math.nan)],
        "weight is not finite": [(0, 2, plain, math.inf)],
        "so its weight is 1, not 0.5": [(0, 2, own, 0.5)],
        "shifts what the model computes, so its weight is 1": [(0, 2, shifted, 2.0)],
        "rescales or shifts": [(0, 2, dora, 2.0)],
        "one adapter with modules of its own is possible": [(0, 2, own, 1.0), (0, 2, plain, 1.0), (0, 2, own, 1.0)],
        "adapters[1]: was not made for this program": [(0, 2, plain, 1.0), (2, 3, foreign, 1.0)],
        "more than 1024 stacked rank rows in layers.0.qkv_proj": [(1, 3, huge, 1.0)] * 2,
        "at most 2048 ranges of rows": [(0, 1, plain, 1.0)] * 2049,
        "needs (row_begin, row_end, adapter, weight)": [(0, 1, plain)],
    }
    base, used = step(engine, []), step(engine, [AdapterRows(1, 3, plain, 1.0)])
    assert not np.array_equal(base, used)
    for text, adapters in wrong.items():
        ranges = [AdapterRows(*each) if len(each) == 4 else each for each in adapters]
        with pytest.raises(KernelError) as caught:
            step(engine, ranges)
        assert text in str(caught.value), str(caught.value)
        assert np.array_equal(step(engine, [AdapterRows(1, 3, plain, 1.0)]), used), text
        with pytest.raises(KernelError):
            step(engine, ranges)
        assert np.array_equal(step(engine, []), base), text
    with pytest.raises(KernelError, match="sample_rows: must ascend where rows have adapters"):
        step(engine, [AdapterRows(1, 3, plain, 1.0)], samples=[2, 1])
    without = make_engine(adapters__max_resident=0, model__format="f32")
    with pytest.raises(KernelError, match="adapters: the program was made without"):
        step(without, [AdapterRows(1, 3, plain, 1.0)])


def test_what_is_not_an_adapter_is_a_type_error(engine: Engine):
    with pytest.raises((TypeError, RuntimeError)):
        step(engine, [AdapterRows(0, 1, "adapter", 1.0)])
    step(engine, [])


def test_rank_0_tensors_and_empty_adapters_are_possible(engine: Engine):
    empty = random_adapter(engine.model, "int8", Kind(targets=()), seed=1)
    assert not empty.tensors
    tokens = [3, 4, 5]
    base = run(engine, [Row(tokens)])[0]
    assert np.array_equal(run(engine, [Row(tokens, [(engine.executable.load_adapter(empty), 1.0)])])[0], base)
    nothing = LoraTensor(0, np.zeros(0, np.uint8), np.zeros(0, np.float32), ())
    hollow = engine.executable.load_adapter(replace(empty, tensors={QKV: nothing}))
    assert np.array_equal(run(engine, [Row(tokens, [(hollow, 3.0), (hollow, 1.0)])])[0], base)
