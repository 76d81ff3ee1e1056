"""Experts that read wide or rotated groups: their storage, their results, and LoRA on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from e2e import harness
from engine_parts import MakeEngine
from expert_deltas import Deltas, write
from goldens.families import QWEN3_MOE
from numpy.typing import NDArray

from infeng_core import Engine, SamplingParams
from infeng_core.cli import main
from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.quant import builtin_format
from infeng_core.requests.request import Request

SIZES = {"hidden_size": 192, "moe_intermediate_size": 320, "num_experts": 5, "num_experts_per_tok": 2}
CASE = replace(
    QWEN3_MOE,
    dense=(),
    prompt_length=60,
    config={**QWEN3_MOE.config, **SIZES, "num_hidden_layers": 1, "mlp_only_layers": []},
)
WIDE = "int6-p32-a256-h64"
ROW = "int4-p32-arow-h256"
PARAMS = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
ROWS = range(CASE.prompt_length)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CASE.write(tmp_path_factory.mktemp("mixture"))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    modules = ["q_proj", "gate_proj", "up_proj", "down_proj"]
    return write(tmp_path_factory.mktemp("lora") / "it", Deltas(CASE, 5).modules(), target_modules=modules)


def run(engine: Engine, adapter: str | None = None) -> list[dict[int, int]]:
    """Return checksums of the logits of three requests."""
    recorder = harness.Recorder(engine)
    prompts = [CASE.prompt[:begin].tolist() for begin in (33, 1, 6)]
    names = (adapter, None, adapter)
    engine.generate([Request(tuple(one), PARAMS, adapter=who) for one, who in zip(prompts, names, strict=True)])
    return [recorder.of(index) for index in range(3)]


def logits(engine: Engine) -> NDArray[np.float32]:
    return harness.logits(engine, CASE.prompt, ROWS)


@pytest.mark.parametrize(
    "format",
    [
        WIDE,
        ROW,
        pytest.param("int4-p32-a128", marks=pytest.mark.slow),
        pytest.param("int5-p32-h64", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("dtype", ["int8", pytest.param("bf16", marks=pytest.mark.slow)])
def test_every_library_gives_the_bytes_of_the_reference(
    make_engine: MakeEngine, model: Path, adapter: Path, format: str, dtype: str
) -> None:
    settings = {"model__format": format, "adapters__dtype": dtype, "kv_cache__memory": "4MB"}
    found = []
    for more in ({"kernels__order": ["reference"]}, {"threads__count": 2, "scheduler__max_batch_tokens": 9}):
        engine = make_engine(model, **settings, **more)
        engine.adapters.load("it", str(adapter))
        found.append((run(engine, "it"), run(engine)))
    assert found[0] == found[1] and found[0][0] != found[0][1]
    formats = engine.model.formats_used
    assert {formats[name] for name in formats if ".experts." in name} == {format}
    lines = [one.detail for one in engine.bound() if one.op == "linear" and ".experts.gate_up_proj" in one.detail]
    steps = "silu_mul" if format == ROW else "silu_mul + quantize_wide"
    assert lines and all(one.endswith(steps) for one in lines)
    alone = [one.detail for one in engine.bound() if one.op == "epilogue" and ".experts.gate_up_proj" in one.detail]
    assert any("quantize_row" in one for one in alone) is (format == ROW)


@pytest.mark.slow
def test_experts_may_read_other_groups_than_their_layers_do(make_engine: MakeEngine, model: Path) -> None:
    formats = {"*.experts.gate_up_proj": "int4-p32-a128-h64", "*.experts.down_proj": "int6-p32-a256"}
    settings = {"model__format": "int8-row", "model__formats": formats, "kv_cache__memory": "4MB"}
    found = [run(make_engine(model, **settings, **more)) for more in ({}, {"kernels__order": ["reference"]})]
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("format", [WIDE, "int6-p32-arow-h256"])
def test_rotated_experts_compute_what_they_did_before(make_engine: MakeEngine, model: Path, format: str) -> None:
    settings = {"kv_cache__dtype": "f32", "kv_cache__memory": "4MB", "scheduler__max_running": 64}
    exact, plain, wide, independent = (
        logits(make_engine(model, model__format=format, backend__use=backend, **settings))
        for format, backend in (("f32", "native"), ("int6-p32", "native"), (format, "native"), (format, "numpy"))
    )
    scale = exact.std()
    errors = [np.abs(one - exact).mean() / scale for one in (plain, wide)]
    assert 0 < errors[1] < 1.5 * errors[0] < 0.3
    assert np.median(np.abs(wide - independent)) < 0.1 * np.median(np.abs(wide - exact))


@pytest.mark.parametrize("dtype", ["int8", pytest.param("bf16", marks=pytest.mark.slow)])
def test_an_adapter_of_rotated_experts_has_the_effect_that_it_has_over_floats(
    make_engine: MakeEngine, model: Path, adapter: Path, dtype: str
) -> None:
    found = {}
    for format in ("f32", "int6-p32", "int6-p32-a128-h64"):
        settings = {"model__format": format, "adapters__dtype": dtype, "kv_cache__dtype": "f32"}
        engine = make_engine(model, **settings, kv_cache__memory="4MB", scheduler__max_running=64)
        found[format] = [
            harness.logits(engine, CASE.prompt, ROWS, adapters=harness.applied(engine, some))
            for some in ([], [(adapter, 1.0)])
        ]
    (base, exact), plain, turned = found.values()
    effect = np.abs(exact - base).mean()
    errors = [np.abs(one[1] - exact).mean() for one in (plain, turned)]
    assert errors[1] < 1.5 * errors[0] < 0.5 * effect


@pytest.mark.slow
def test_experts_are_rotated_in_conversion_and_calibrated_on_the_kernels_inputs(model: Path, tmp_path: Path) -> None:
    text, weights = tmp_path / "text.txt", dict(CASE.tensors())
    words = np.random.default_rng(1).integers(3, 271, 700)
    text.write_text(" ".join(f"t{word}" for word in words), encoding="utf-8")
    found = {}
    for name, more in (("nearest", []), ("fitted", ["--calibrate", str(text)])):
        options = ["--format", "int4-p32", "--act-group", "128", "--rotate", "h64", *more]
        assert main(["convert", str(model), str(tmp_path / name), *options]) == 0
        found[name] = read_native(tmp_path / name, builtin_format)
    for tensor in ("layers.0.experts.gate_up_proj", "layers.0.experts.down_proj"):
        assert {one.formats_used[tensor] for one in found.values()} == {"int4-p32-a128-h64"}
    for name in ("model.layers.0.mlp.experts.4.up_proj.weight", "model.layers.0.mlp.experts.2.down_proj.weight"):
        nearest, fitted = (one.matrix(name) for one in found.values())
        assert not np.array_equal(nearest, fitted)
        assert all(np.corrcoef(one.ravel(), weights[name].ravel())[0, 1] > 0.99 for one in (nearest, fitted))
