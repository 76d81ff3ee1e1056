"""Adapters in the executor: right to the last bit, and the same bytes whatever runs beside them."""

from __future__ import annotations

import numpy as np
import pytest
from engine_parts import MakeEngine
from lora_parts import Formula, Kind, Row, random_adapter, run

from infeng_core import Engine

TOKENS = [int(t) for t in np.random.default_rng(5).integers(2, 300, 23)]
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


@pytest.fixture
def engine_for(make_engine: MakeEngine):
    """Return ``make(dtype, **settings)``: every row of a step may be sampled."""

    def make(dtype: str, **settings: object) -> Engine:
        settings = {"scheduler__max_running": 128, "kv_cache__dtype": "f32", "model__format": "f32", **settings}
        return make_engine(adapters__dtype=dtype, **settings)

    return make


@pytest.mark.parametrize("dtype", DTYPES)
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
