"""LoRA on experts, as PEFT saves it in all of its ways, is the model with the products merged into its weights."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e import harness
from e2e.test_families_golden import VECTOR, settings
from goldens.families import GRANITE_MOE, MIXTRAL, QWEN3_MOE, FamilyCase
from numpy.typing import NDArray
from safetensors.numpy import save_file

from infeng_core import Engine, SamplingParams
from infeng_core.errors import AdapterError, KernelError
from infeng_core.formats import convert_adapter, load_adapter
from infeng_core.formats.adapters.packed import LoraTensor
from infeng_core.formats.quant import BUILTIN
from infeng_core.requests.request import Request

RANK, ALPHA = 3, 6
TOLERANCE = 2e-4
Tensors = dict[str, NDArray[np.float32]]
PREFIX = "base_model.model."
PROMPT = QWEN3_MOE.prompt[:120]

NAMES = {
    "qwen3_moe": ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj", "mlp.experts.{}.down_proj"),
    "mixtral": tuple(f"block_sparse_moe.experts.{{}}.{name}" for name in ("w1", "w3", "w2")),
}


class Deltas:
    """Low-rank products for all experts of a case, those of gate and up over one A, and for q."""

    def __init__(self, case: FamilyCase, seed: int) -> None:
        config, random = case.config, np.random.RandomState(seed)
        self.case, self.count = case, config.get("num_experts") or config["num_local_experts"]
        self.inner = config.get("moe_intermediate_size", config["intermediate_size"])
        self.hidden = config["hidden_size"]
        self.layers = [layer for layer in range(config["num_hidden_layers"]) if layer not in case.dense]

        def pair(rows: int, k: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
            a = random.standard_normal((RANK, k)) / np.sqrt(k)
            return a.astype(np.float32), (random.standard_normal((rows, RANK)) * 0.3).astype(np.float32)

        each = range(self.count)
        self.gate_up = {layer: [pair(2 * self.inner, self.hidden) for _ in each] for layer in self.layers}
        self.down = {layer: [pair(self.hidden, self.inner) for _ in each] for layer in self.layers}
        width = config["num_attention_heads"] * case.head_dim
        layers = range(config["num_hidden_layers"])
        self.q = {f"model.layers.{layer}.self_attn.q_proj": pair(width, self.hidden) for layer in layers}

    def merged(self, weights: Tensors, weight: float = 1.0) -> Tensors:
        made, scale = dict(weights), np.float32(weight * ALPHA / RANK)
        for name, (a, b) in self.q.items():
            made[f"{name}.weight"] = weights[f"{name}.weight"] + scale * b @ a
        for layer in self.layers:
            name = f"model.layers.{layer}"
            wide = [scale * b @ a for a, b in self.gate_up[layer]]
            back = [scale * b @ a for a, b in self.down[layer]]
            if self.case.experts == "stacks":
                made[f"{name}.block_sparse_moe.input_linear.weight"] += np.stack(wide)
                made[f"{name}.block_sparse_moe.output_linear.weight"] += np.stack(back)
                continue
            for expert, (first, last) in enumerate(zip(wide, back, strict=True)):
                parts = (first[: self.inner], first[self.inner :], last)
                for module, delta in zip(NAMES[self.case.config["model_type"]], parts, strict=True):
                    key = f"{name}.{module.format(expert)}.weight"
                    made[key] = weights[key] + delta
        return made

    def of_attention(self) -> Tensors:
        return {
            f"{PREFIX}{name}.lora_{side}.weight": one
            for name, pair in self.q.items()
            for side, one in zip("AB", pair, strict=True)
        }

    def modules(self) -> Tensors:
        """As of models whose experts are modules, up to transformers 4."""
        found = self.of_attention()
        for layer in self.layers:
            for expert in range(self.count):
                (a, b), (c, d) = self.gate_up[layer][expert], self.down[layer][expert]
                pairs = ((a, b[: self.inner]), (a, b[self.inner :]), (c, d))
                for module, pair in zip(NAMES[self.case.config["model_type"]], pairs, strict=True):
                    name = f"{PREFIX}model.layers.{layer}.{module.format(expert)}"
                    found |= {f"{name}.lora_{side}.weight": one for side, one in zip("AB", pair, strict=True)}
        return found

    def parameters(self, places: tuple[str, str], *, is_straight: bool) -> Tensors:
        """As of parameters of three dimensions: the B of all experts count these fastest."""
        found = self.of_attention()
        for layer in self.layers:
            for place, pairs in zip(places, (self.gate_up[layer], self.down[layer]), strict=True):
                own = [(a, b) if is_straight else (b.T, a.T) for a, b in pairs]
                name = f"{PREFIX}model.layers.{layer}.{place}"
                found[f"{name}.lora_A.weight"] = np.concatenate([a for a, _ in own])  # (experts * r, p)
                stacked = np.stack([b for _, b in own], axis=2)  # (q, r, experts)
                found[f"{name}.lora_B.weight"] = stacked.reshape(len(stacked), -1)
        return found


QWEN3_PLACES = ("mlp.experts.base_layer", "mlp.experts")
QWEN3_PARAMETERS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def write(directory: Path, tensors: Tensors, **config: Any) -> Path:
    directory.mkdir()
    save_file(
        {name: np.ascontiguousarray(one) for name, one in tensors.items()}, directory / "adapter_model.safetensors"
    )
    base = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps({**base, **config}))
    return directory


def forms(directory: Path, deltas: Deltas) -> Mapping[str, Path]:
    """Write the same adapter in each way that PEFT saves it."""
    modules = ["q_proj", "gate_proj", "up_proj", "down_proj"]
    parameters = {"target_parameters": QWEN3_PARAMETERS}
    both = (deltas.parameters(QWEN3_PLACES, is_straight=one) for one in (True, False))
    return {
        # gate_proj and its kind are those of dense layers too, which the file has none of
        "modules": write(directory / "modules", deltas.modules(), target_modules=modules, exclude_modules=DENSE),
        "from 0.19": write(directory / "straight", next(both), **parameters, peft_version="0.19.1"),
        "up to 0.18": write(directory / "turned", next(both), **parameters),
    }


DENSE = r"model\.layers\.1\.mlp\..*"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return QWEN3_MOE.write(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def engine(base: Path) -> Iterator[Engine]:
    with harness.engine(base, settings(QWEN3_MOE, VECTOR)) as made:
        yield made


def merged(directory: Path, deltas: Deltas, implementation: str, prompt: NDArray[np.int32]) -> NDArray[np.float32]:
    whole = deltas.case.write(directory)
    save_file(deltas.merged(dict(deltas.case.tensors())), whole / "model.safetensors", metadata={"format": "pt"})
    with harness.engine(whole, settings(deltas.case, implementation)) as made:
        return harness.logits(made, prompt, range(len(prompt)))


def test_adapters_of_experts_are_what_they_would_be_merged(engine: Engine, tmp_path: Path) -> None:
    deltas = Deltas(QWEN3_MOE, 5)
    expected = merged(tmp_path / "merged", deltas, VECTOR, PROMPT)
    rows = range(len(PROMPT))
    assert np.abs(harness.logits(engine, PROMPT, rows) - expected).max() > 1
    for name, path in forms(tmp_path, deltas).items():
        found = harness.logits(engine, PROMPT, rows, chunks=2, adapters=harness.applied(engine, [(path, 1.0)]))
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE, err_msg=name)
    again = tmp_path / "artifact"
    convert_adapter(tmp_path / "straight", again, engine.model, "f32")
    assert (
        load_adapter(again, engine.model, "f32").tensors.keys()
        == load_adapter(tmp_path / "straight", engine.model, "f32").tensors.keys()
    )


def test_adapters_of_experts_combine_by_their_weights(engine: Engine, tmp_path: Path) -> None:
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
    found = harness.logits(engine, PROMPT[:40], rows, adapters=harness.applied(engine, applied))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", [VECTOR, "numpy"])
@pytest.mark.parametrize("case", [MIXTRAL, GRANITE_MOE, QWEN3_MOE], ids=lambda case: case.name)
def test_every_kind_of_experts_takes_them(implementation: str, case: FamilyCase, tmp_path: Path) -> None:
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
def test_rows_of_several_adapters_share_a_batch_and_no_bytes_change(base: Path, tmp_path: Path, dtype: str) -> None:
    made = [forms(tmp_path, Deltas(QWEN3_MOE, 5))["modules"]]
    other = Deltas(QWEN3_MOE, 8).parameters(QWEN3_PLACES, is_straight=True)
    made.append(write(tmp_path / "other", other, target_parameters=QWEN3_PARAMETERS, peft_version="0.20.0"))
    adapters = dict(zip("ab", made, strict=True))
    together = bytes_of(base, adapters, [["a", None, "b"]], dtype, threads=2, rows=29)
    alone = bytes_of(base, adapters, [["a"], [None], ["b"]], dtype)
    assert together == alone and len({str(one) for one in alone}) == 3
    assert all(len(one) == SAMPLING.max_tokens for one in alone)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_every_storage_gives_the_bytes_of_the_reference(base: Path, tmp_path: Path, dtype: str) -> None:
    adapters = {"a": forms(tmp_path, Deltas(QWEN3_MOE, 5))["modules"]}
    found = [bytes_of(base, adapters, [["a"]], dtype, implementation=one) for one in (VECTOR, "reference")]
    assert found[0] == found[1]


def test_what_does_not_fit_is_refused_by_name(engine: Engine, tmp_path: Path) -> None:
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
            load_adapter(write(tmp_path / name, tensors, **config), engine.model, "f32")


def test_adapters_that_combine_have_room_for_the_most_that_each_has_of_an_expert(
    engine: Engine, tmp_path: Path
) -> None:
    packed = load_adapter(forms(tmp_path, Deltas(QWEN3_MOE, 5))["modules"], engine.model, "f32")
    name, tensor = next(item for item in packed.tensors.items() if item[0].endswith("experts.down_proj[3]"))
    a = np.zeros(64 * BUILTIN["f32"].panel_bytes(QWEN3_MOE.config["moe_intermediate_size"]), np.uint8)
    full = replace(tensor, rank=1024, a=a, scaling=np.zeros(1024, np.float32))
    part = replace(
        tensor.parts[0], rank=0, b=tensor.parts[0].b[:, :0], bias=np.zeros(tensor.parts[0].panels * 16, "f4")
    )
    shift = LoraTensor(0, a[:0], full.scaling[:0], (part,))
    kinds = (packed, replace(packed, tensors={name: full}), replace(packed, tensors={name: shift}))
    plain, filled, shifted = ((engine.executable.load_adapter(kind), 1.0) for kind in kinds)
    base = harness.logits(engine, PROMPT[:8], [7])
    for alone in ([filled], [filled, shifted]):
        assert np.array_equal(harness.logits(engine, PROMPT[:8], [7], adapters=alone), base)
    with pytest.raises(KernelError, match=r"have more than 1024 stacked rank rows in layers\.\d\.experts\.down_proj"):
        harness.logits(engine, PROMPT[:8], [7], adapters=[filled, plain])


def test_square_matrices_hang_on_the_version_that_saved_them() -> None:
    from infeng_core.formats.adapters.parameters import Parameter
    from infeng_core.formats.adapters.sites import Site
    from infeng_core.models.weights import Part

    one = Parameter("x.y", ((Site("x.0", "t[0]", Part("x.0.weight", 8), 8, "linear", True),),) * 2)
    shapes = ((6, 8), (8, 6), 3)
    assert one.is_straight(*shapes, (0, 19, 1)) is True and one.is_straight(*shapes, (0, 18, 0)) is False
    for version in ((), (0, 19, 0)):
        with pytest.raises(ValueError, match="differs between versions of PEFT"):
            one.is_straight(*shapes, version)
    assert one.is_straight((6, 9), (8, 6), 3, ()) is None
