"""The planner: fused and split epilogues give the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_model
from engine_parts import MakeEngine, Recorder

from infeng_core import Engine, SamplingParams
from infeng_core.backends.native.binding import Binder

PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in which every step occurs: biases, residuals, gates; heads of 64 that attention can quantize itself."""
    shape = tiny_model.Shape(
        hidden=96, intermediate=100, heads=2, kv_heads=1, head_dim=64, bias=True, tie=False, seed=3
    )
    return tiny_model.write(tmp_path_factory.mktemp("biased"), shape)


def logits(engine: Engine) -> dict[int, list[bytes]]:
    recorder = Recorder(engine)
    engine.generate(["the quick brown fox", "x"], PARAMS)
    return recorder.logits


def ops(engine: Engine, op: str) -> list[str]:
    return [bound.detail for bound in engine.bound() if bound.op == op]


@pytest.mark.parametrize("weights", ["f32", "int4-g64"])
@pytest.mark.parametrize("most", [0, 1, 2])
def test_steps_that_no_kernel_fuses_become_an_op_of_their_own_with_the_same_bytes(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, biased: Path, weights: str, most: int
):
    settings = {"model__format": weights, "adapters__max_resident": 0}
    fused = make_engine(biased, **settings)
    assert ops(fused, "epilogue") == []
    expected = logits(fused)
    real = Binder.fused
    monkeypatch.setattr(Binder, "fused", lambda *arguments: min(most, real(*arguments)))
    split = make_engine(biased, **settings)
    assert (ops(split, "epilogue") != []) is (most < 2 or weights != "f32")
    assert logits(split) == expected


@pytest.mark.slow
def test_attention_quantizes_itself_only_where_groups_fit_its_heads(make_engine: MakeEngine, biased: Path):
    groups = {"model__format": "int4-g64"}  # rows are rounded by an op of their own
    assert all("quantize" in detail for detail in ops(make_engine(biased, **groups), "attention"))
    small_heads = make_engine(adapters__max_resident=0, **groups)
    assert not any("quantize" in detail for detail in ops(small_heads, "attention"))
    assert ops(small_heads, "epilogue") == ["int8 4/2 heads of 16: quantize x2"]


def test_values_are_int8_only_for_integer_weights(make_engine: MakeEngine):
    formats = {"model__format": "f32", "model__formats": {"layers.*.down_proj": "int4-g64"}}
    mixed = make_engine(**formats, adapters__max_resident=0)
    linear = ops(mixed, "linear")
    quantizing = [detail for detail in linear + ops(mixed, "rmsnorm") if "quantize" in detail]
    assert [detail.split()[0] for detail in quantizing] == ["layers.*.gate_up_proj"]
    assert {detail.split()[0]: detail.split()[1] for detail in linear}["layers.*.down_proj"] == "int4-g64"


def test_kernels_follow_the_order_of_the_manifest(make_engine: MakeEngine):
    engine = make_engine(kernels__order=["reference"])
    assert {op.library for op in engine.bound()} == {"reference"}
    assert {op.rows for op in engine.bound()} == {(1, 512), (1, 32)}, "one kernel for all sizes is one range"


@pytest.mark.parametrize(
    "extra",
    [
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ],
    ids=["linear", "llama3"],
)
def test_scaled_positions_change_the_result(make_engine: MakeEngine, tmp_path: Path, extra: dict[str, Any]):
    scaled = make_engine(tiny_model.write(tmp_path / "model", tiny_model.Shape(extra=extra)))
    assert logits(scaled) != logits(make_engine())
