"""Models whose linears read wide or rotated groups: equal bytes on every library, adapters as over any base."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_adapter
import tiny_model
from adapter_calls import convert_adapter, load_adapter
from engine_parts import MakeEngine, Recorder
from infeng_convert.conversion import convert

from infeng_core import Engine, SamplingParams
from infeng_core.backends.native.binding import Binder
from infeng_core.errors import AdapterError
from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.quant import builtin_format

SHAPE = tiny_model.Shape(hidden=192, intermediate=320, heads=3, kv_heads=1, head_dim=64, tie=False)
FULL = replace(SHAPE, intermediate=2112, heads=4, seed=1)  # whose heads fill a group of 256, and 8 of them gate_up
PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = ["the quick brown fox jumps over the lazy dog " * 2, "x", "1 2 3"]
FORMATS = [
    "int4-p32-a128",
    "int4-p32-a256-h64",
    "int4-p32-arow-h256",
    pytest.param("int8-row-arow-h256", marks=pytest.mark.slow),
    pytest.param("int5-p32-a256", marks=pytest.mark.nightly),
    pytest.param("int6-p32-h64", marks=pytest.mark.nightly),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("model"), SHAPE)


def run(engine: Engine, adapter: str | None = None) -> list[list[bytes]]:
    recorder = Recorder(engine)
    engine.generate(PROMPTS, PARAMS, adapters=adapter)
    return [rows for _, rows in sorted(recorder.logits.items())]


def first(engine: Engine, adapter: str | None = None) -> np.ndarray:
    """Return the logits behind each prompt."""
    return np.array([np.frombuffer(rows[0], np.float32) for rows in run(engine, adapter)])


@pytest.mark.parametrize("format", FORMATS)
def test_every_library_gives_the_bytes_of_the_reference(make_engine: MakeEngine, model: Path, format: str) -> None:
    settings = {"model__format": format, "adapters__max_resident": 0}
    expected = run(make_engine(model, **settings, kernels__order=["reference"]))
    engine = make_engine(model, **settings, threads__count=2, scheduler__max_batch_tokens=9)
    assert run(engine) == expected
    step = "quantize_row" if "arow" in format else "quantize_wide"
    assert any(step in bound.detail for bound in engine.bound() if bound.op == "rmsnorm")


def ops(engine: Engine, op: str) -> list[str]:
    return [bound.detail for bound in engine.bound() if bound.op == op]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("full"), FULL)


@pytest.mark.parametrize(
    "format", ["int6-p32-a256-h64", *(pytest.param(f"int4-p32-{it}", marks=pytest.mark.slow) for it in ("h64", "a128"))]
)
@pytest.mark.parametrize("kernels", [None, ["reference"]])
def test_fused_rounding_of_wide_groups_gives_the_bytes_of_a_separate_op(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, full: Path, format: str, kernels: list[str] | None
) -> None:
    settings = {"model__format": format, "adapters__max_resident": 0, "scheduler__max_batch_tokens": 40}
    settings |= {"kernels__order": kernels} if kernels else {}
    fused = make_engine(full, **settings)
    assert ops(fused, "epilogue") == []
    assert all("silu_mul + quantize_wide" in one for one in ops(fused, "linear") if "gate_up_proj" in one)
    assert all("quantize_wide" in one for one in ops(fused, "attention"))
    expected = run(fused)
    real = Binder.fused
    names = ("linear", "attention")
    monkeypatch.setattr(Binder, "fused", lambda *given: min(given[1] not in names, real(*given)))
    split = make_engine(full, **settings)
    assert any("quantize_wide" in one for one in ops(split, "epilogue")) and run(split) == expected


@pytest.mark.slow
def test_a_linear_leaves_wide_groups_to_a_separate_op_when_they_are_too_few_for_all_workers(
    make_engine: MakeEngine, full: Path
) -> None:
    found = []
    for threads, is_split in ((1, False), (2, True)):
        engine = make_engine(full, model__format="int4-p32-a256", adapters__max_resident=0, threads__count=threads)
        assert any("gate_up_proj" in one and "quantize_wide" in one for one in ops(engine, "epilogue")) is is_split
        found.append(run(engine))
    assert found[0] == found[1]


def test_heads_that_share_groups_across_keys_are_rounded_by_a_separate_op(make_engine: MakeEngine, model: Path) -> None:
    engine = make_engine(model, model__format="int4-p32-h64", adapters__max_resident=0)
    assert [one.rpartition(": ")[2] for one in ops(engine, "epilogue")] == ["quantize_wide x2"]


@pytest.mark.slow
def test_formats_of_one_input_need_not_agree(make_engine: MakeEngine, model: Path) -> None:
    formats = {"layers.0.*": "int4-p32-a256-h64", "layers.*.down_proj": "int8-row", "embed": "int8-row"}
    formats["layers.1.gate_up_proj"] = "int5-p32-arow-h256"
    settings = {"model__format": "int4-p32-a128", "model__formats": formats, "adapters__dtype": "int8"}
    assert run(make_engine(model, **settings)) == run(make_engine(model, **settings, kernels__order=["reference"]))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", pytest.param("bf16", marks=pytest.mark.nightly)])
def test_an_adapter_over_a_rotated_base_has_the_effect_that_it_has_over_floats(
    make_engine: MakeEngine, model: Path, tmp_path: Path, dtype: str
) -> None:
    adapter = str(tiny_adapter.write(tmp_path / "adapter", 3, rank=8, shape=SHAPE, strength=0.15))
    found = {}
    for format in ("f32", "int6-p32", "int6-p32-a128-h64", "int6-p32-arow-h256"):
        engine = make_engine(model, model__format=format, adapters__dtype=dtype, kv_cache__dtype="f32")
        engine.adapters.load("it", adapter)
        found[format] = first(engine), first(engine, "it")
    (base, exact), plain, *turned = found.values()
    effect = np.abs(exact - base).max()
    errors = [np.abs(one[1] - exact).max() for one in (plain, *turned)]
    assert effect > 1 and max(errors[1:]) < 2 * errors[0] < 0.3 * effect


def test_a_packed_adapter_records_how_the_inputs_of_its_base_are_rotated(tmp_path: Path) -> None:
    formats = ("int4-p32", "int4-p32-a128-h64", "int4-p32-arow-h256")
    shape = replace(SHAPE, hidden=256, heads=4)  # of rows that are rotated in blocks of 256 and, of 320, 64
    adapter, model = (
        tiny_adapter.write(tmp_path / "adapter", 3, shape=shape),
        tiny_model.write(tmp_path / "model", shape),
    )
    for format in formats:
        convert(model, tmp_path / format, FormatChoice(format, {"embed": "int8-row"}), progress=False)
    models = [read_native(tmp_path / format, builtin_format) for format in formats]
    for index, base in enumerate(models):
        convert_adapter(adapter, tmp_path / f"packed{index}", base, "int8")
        assert load_adapter(tmp_path / f"packed{index}", base, "int8").id
        assert load_adapter(adapter, base, "int8").id
    for mine, others, what in ((0, 1, "blocks of 64"), (1, 0, "not rotated"), (1, 2, "of 256"), (2, 1, "of 64")):
        with pytest.raises(AdapterError, match=what):
            load_adapter(tmp_path / f"packed{others}", models[mine], "int8")
    convert_adapter(adapter, tmp_path / "floats", models[1], "bf16")
    assert load_adapter(tmp_path / "floats", models[0], "bf16").id, "A of floats reads what is not rotated"
