"""LoRA on experts, as PEFT saves it in all of its ways, is the model with the products merged into its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_calls import convert_adapter, load_adapter
from e2e import harness
from e2e.harness import VECTOR, settings
from expert_deltas import ALPHA, DENSE, PREFIX, QWEN3_PARAMETERS, QWEN3_PLACES, RANK, Deltas, Tensors, forms, write
from goldens.families import GRANITE_MOE, MIXTRAL, QWEN3_MOE, FamilyCase
from numpy.typing import NDArray
from safetensors.numpy import save_file

from infeng_core import Engine, SamplingParams
from infeng_core.errors import AdapterError, KernelError
from infeng_core.formats.adapters.packed import LoraTensor
from infeng_core.formats.quant import BUILTIN
from infeng_core.requests.request import Request

TOLERANCE = 2e-4
PROMPT = QWEN3_MOE.prompt[:120]


def merged(directory: Path, deltas: Deltas, implementation: str, prompt: NDArray[np.int32]) -> NDArray[np.float32]:
    whole = deltas.case.write(directory)
    save_file(deltas.merged(dict(deltas.case.tensors())), whole / "model.safetensors", metadata={"format": "pt"})
    with harness.engine(whole, settings(deltas.case, implementation)) as made:
        return harness.logits(made, prompt, range(len(prompt)))


def test_adapters_of_experts_equal_merged_weights(mixture_engine: Engine, tmp_path: Path) -> None:
    deltas = Deltas(QWEN3_MOE, 5)
    expected = merged(tmp_path / "merged", deltas, VECTOR, PROMPT)
    rows = range(len(PROMPT))
    assert np.abs(harness.logits(mixture_engine, PROMPT, rows) - expected).max() > 1
    for name, path in forms(tmp_path, deltas).items():
        found = harness.logits(
            mixture_engine, PROMPT, rows, chunks=2, adapters=harness.applied(mixture_engine, [(path, 1.0)])
        )
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE, err_msg=name)
    again = tmp_path / "artifact"
    convert_adapter(tmp_path / "straight", again, mixture_engine.model, "f32")
    assert (
        load_adapter(again, mixture_engine.model, "f32").tensors.keys()
        == load_adapter(tmp_path / "straight", mixture_engine.model, "f32").tensors.keys()
    )


def test_adapters_of_experts_combine_by_their_weights(mixture_engine: Engine, tmp_path: Path) -> None:
    weights, applied = dict(QWEN3_MOE.tensors()), []
    for seed, weight in ((5, 0.5), (8, -1.25)):
        deltas = Deltas(QWEN3_MOE, seed)
        weights = deltas.merged(weights, weight)
        tensors = deltas.parameters(QWEN3_PLACES, is_straight=True)
        path = write(tmp_path / f"{seed}", tensors, target_parameters=QWEN3_PARAMETERS, peft_version="0.20.0")
        applied.append((path, weight))
    whole, rows = QWEN3_MOE.write(tmp_path / "merged"), range(40)
    save_file(weights, whole / "model.safetensors", metadata={"format": "pt"})
    with harness.engine(whole, settings(QWEN3_MOE, VECTOR)) as made:
        expected = harness.logits(made, PROMPT[:40], rows)
    found = harness.logits(mixture_engine, PROMPT[:40], rows, adapters=harness.applied(mixture_engine, applied))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", [VECTOR, "numpy"])
@pytest.mark.parametrize("case", [MIXTRAL, GRANITE_MOE, QWEN3_MOE], ids=lambda case: case.name)
def test_every_family_of_experts_takes_adapters(implementation: str, case: FamilyCase, tmp_path: Path) -> None:
    deltas, prompt = Deltas(case, 6), case.prompt[:60]
    if case is MIXTRAL:
        path = write(tmp_path / "peft", deltas.modules(), target_modules=["q_proj", "w1", "w2", "w3"])
    elif case is QWEN3_MOE:
        path = forms(tmp_path, deltas)["modules"]
    else:
        places = ("block_sparse_moe.input_linear", "block_sparse_moe.output_linear")
        tensors = deltas.parameters(places, is_straight=True)
        path = write(tmp_path / "peft", tensors, target_parameters=[f"{name.split('.')[1]}.weight" for name in places])
    expected = merged(tmp_path / "merged", deltas, implementation, prompt)
    with harness.engine(case.write(tmp_path / "base"), settings(case, implementation)) as made:
        found = harness.logits(made, prompt, range(60), adapters=harness.applied(made, [(path, 1.0)]))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("case", "module", "targets"),
    [
        (GRANITE_MOE, "block_sparse_moe.experts", ["block_sparse_moe.experts.gate_up_proj", "experts.down_proj"]),
        (MIXTRAL, "mlp.experts", ["down_proj", "gate_up_proj"]),
    ],
    ids=["granite-moe", "mixtral"],
)
def test_adapters_may_name_experts_and_router_like_transformers_5(
    case: FamilyCase, module: str, targets: list[str], tmp_path: Path
) -> None:
    deltas, prompt = Deltas(case, 6), case.prompt[:60]
    router = {"granitemoe": "block_sparse_moe.router", "mixtral": "mlp.gate"}[case.config["model_type"]]
    stored = {"granitemoe": "block_sparse_moe.router.layer"}.get(case.config["model_type"], "block_sparse_moe.gate")
    random, weights = np.random.RandomState(2), dict(case.tensors())
    tensors = deltas.parameters((f"{module}.base_layer", module), is_straight=True)
    whole = deltas.merged(weights)
    for layer in deltas.layers:
        name = f"model.layers.{layer}.{stored}.weight"
        a = (random.standard_normal((RANK, deltas.hidden)) / np.sqrt(deltas.hidden)).astype(np.float32)
        b = (random.standard_normal((deltas.count, RANK)) * 0.3).astype(np.float32)
        tensors |= {
            f"{PREFIX}model.layers.{layer}.{router}.lora_{side}.weight": one
            for side, one in zip("AB", (a, b), strict=True)
        }
        whole[name] = weights[name] + np.float32(ALPHA / RANK) * b @ a
    path = write(tmp_path / "peft", tensors, target_parameters=[*targets, f"{router}.weight"])
    directory = case.write(tmp_path / "whole")
    save_file(whole, directory / "model.safetensors", metadata={"format": "pt"})
    with harness.engine(directory, settings(case, VECTOR)) as made:
        expected = harness.logits(made, prompt, range(60))
    with harness.engine(case.write(tmp_path / "base"), settings(case, VECTOR)) as made:
        found = harness.logits(made, prompt, range(60), adapters=harness.applied(made, [(path, 1.0)]))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


SAMPLING = SamplingParams(temperature=0.9, seed=3, max_tokens=6, ignore_eos=True)
INT8 = {"model.format": "int8-row", "kv_cache.dtype": "int8"}


def bytes_of(
    base: Path, adapters: Mapping[str, Path], batches: list[list[str | None]], dtype: str, **more: Any
) -> list[Any]:
    """Return the checksums of the logits of each request by its adapter, batch after batch."""
    over = {**INT8, "adapters.dtype": dtype, **harness.IMPLEMENTATIONS[more.pop("implementation", VECTOR)]}
    with harness.engine(base, over, adapters=adapters, **more) as made:
        recorder = harness.Recorder(made)
        prompts = {name: QWEN3_MOE.prompt[17 * i : 30 + 23 * i].tolist() for i, name in enumerate(("a", "b", None))}
        for who in batches:
            made.generate([Request(tuple(prompts[name]), SAMPLING, adapter=name) for name in who])
        return [recorder.of(index) for index in range(sum(map(len, batches)))]


@pytest.mark.parametrize("dtype", ["bf16", pytest.param("int8", marks=pytest.mark.slow)])
def test_rows_of_several_adapters_share_a_batch_and_no_bytes_change(mixture: Path, tmp_path: Path, dtype: str) -> None:
    made = [forms(tmp_path, Deltas(QWEN3_MOE, 5))["modules"]]
    other = Deltas(QWEN3_MOE, 8).parameters(QWEN3_PLACES, is_straight=True)
    made.append(write(tmp_path / "other", other, target_parameters=QWEN3_PARAMETERS, peft_version="0.20.0"))
    adapters = dict(zip("ab", made, strict=True))
    together = bytes_of(mixture, adapters, [["a", None, "b"]], dtype, threads=2, rows=29)
    alone = bytes_of(mixture, adapters, [["a"], [None], ["b"]], dtype)
    assert together == alone and len({str(one) for one in alone}) == 3
    assert all(len(one) == SAMPLING.max_tokens for one in alone)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_every_storage_gives_the_bytes_of_the_reference(mixture: Path, tmp_path: Path, dtype: str) -> None:
    adapters = {"a": forms(tmp_path, Deltas(QWEN3_MOE, 5))["modules"]}
    found = [bytes_of(mixture, adapters, [["a"]], dtype, implementation=one) for one in (VECTOR, "reference")]
    assert found[0] == found[1]


def test_an_error_names_an_adapter_tensor_that_does_not_fit(mixture_engine: Engine, tmp_path: Path) -> None:
    deltas = Deltas(QWEN3_MOE, 5)
    whole = deltas.parameters(QWEN3_PLACES, is_straight=True)
    inner, outer = (f"{PREFIX}model.layers.2.{place}.lora_A.weight" for place in QWEN3_PLACES)
    modules = deltas.modules()
    one = f"{PREFIX}model.layers.2.mlp.experts.4.up_proj.lora_B.weight"
    parameters = {"target_parameters": QWEN3_PARAMETERS}
    named = {"target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"], "exclude_modules": DENSE}
    cases: dict[str, tuple[Tensors, dict[str, Any], str]] = {
        "a parameter": ({**whole, inner: whole[inner][:-1]}, parameters, r"layers\.2\..*9 experts of 80 x 72"),
        "no tensor": ({k: v for k, v in whole.items() if k != outer}, parameters, r"experts.*calls for .*down_proj"),
        "unasked": (whole, {}, r"changes experts in a way that is not run, or that adapter_config"),
        "rank": (whole, {**parameters, "r": 4}, r"at rank 4 have other shapes|\(4, 72\) is expected"),
        "an expert": ({k: v for k, v in modules.items() if k != one}, named, r"4\.up_proj\.lora_B\.weight is missing"),
        "dora": (whole, {**parameters, "use_dora": True}, "use_dora.*target_parameters"),
        "other names": (modules, {"target_modules": ["q_proj"]}, r"experts\.0\..*is not called for"),
    }  # fmt: skip
    for name, (tensors, config, why) in cases.items():
        with pytest.raises(AdapterError, match=why):
            load_adapter(write(tmp_path / name, tensors, **config), mixture_engine.model, "f32")


def test_combined_adapters_have_room_for_their_widest_experts(mixture_engine: Engine, tmp_path: Path) -> None:
    packed = load_adapter(forms(tmp_path, Deltas(QWEN3_MOE, 5))["modules"], mixture_engine.model, "f32")
    name, tensor = next(item for item in packed.tensors.items() if item[0].endswith("experts.down_proj[3]"))
    a = np.zeros(64 * BUILTIN["f32"].panel_bytes(QWEN3_MOE.config["moe_intermediate_size"]), np.uint8)
    full = replace(tensor, rank=1024, a=a, scaling=np.zeros(1024, np.float32))
    part = replace(
        tensor.parts[0], rank=0, b=tensor.parts[0].b[:, :0], bias=np.zeros(tensor.parts[0].panels * 16, "f4")
    )
    shift = LoraTensor(0, a[:0], full.scaling[:0], (part,))
    kinds = (packed, replace(packed, tensors={name: full}), replace(packed, tensors={name: shift}))
    plain, filled, shifted = ((mixture_engine.executable.load_adapter(kind), 1.0) for kind in kinds)
    base = harness.logits(mixture_engine, PROMPT[:8], [7])
    for alone in ([filled], [filled, shifted]):
        assert np.array_equal(harness.logits(mixture_engine, PROMPT[:8], [7], adapters=alone), base)
    with pytest.raises(KernelError, match=r"have more than 1024 stacked rank rows in layers\.\d\.experts\.down_proj"):
        harness.logits(mixture_engine, PROMPT[:8], [7], adapters=[filled, plain])


def test_square_matrices_are_read_by_the_version_that_saved_them() -> None:
    from infeng_peft.parameters import Parameter

    from infeng_core.formats.adapters.target_modules import TargetModule
    from infeng_core.models.weights import Part

    one = Parameter("x.y", ((TargetModule("x.0", "t[0]", Part("x.0.weight", 8), 8, "linear", True),),) * 2)
    shapes = ((6, 8), (8, 6), 3)
    assert one.is_straight(*shapes, (0, 19, 1)) is True and one.is_straight(*shapes, (0, 18, 0)) is False
    for version in ((), (0, 19, 0)):
        with pytest.raises(ValueError, match="differs between versions of PEFT"):
            one.is_straight(*shapes, version)
    assert one.is_straight((6, 9), (8, 6), 3, ()) is None
