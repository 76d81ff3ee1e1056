"""LoRA on experts out of GGUF, written with the format's own library: the same as PEFT's, or as merged weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import expert_deltas
import gguf
import gguf_writing
import numpy as np
import pytest
from adapter_calls import load_adapter
from convert_parts import load
from e2e import harness
from expert_deltas import ALPHA, RANK, Deltas, Tensors
from goldens.families import GPT_OSS_PLAIN, GRANITE_MOE, MIXTRAL, QWEN3_MOE, FamilyCase
from safetensors.numpy import save_file

from infeng_core.errors import AdapterError
from infeng_core.formats.tensors import LoadedModel
from infeng_core.plug.assembly import load_config

ARCHITECTURES = {"qwen3_moe": "qwen3moe", "mixtral": "llama", "granitemoe": "granitemoe", "gpt_oss": "gpt-oss"}


def write(path: Path, case: FamilyCase, tensors: Tensors, kind: str = "F32") -> Path:
    """Write the tensors of ``Deltas.stacks`` as an adapter of a case."""
    family, heads = case.config["model_type"], case.config["num_attention_heads"]
    writer = gguf.GGUFWriter(str(path), ARCHITECTURES[family])
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    to = gguf.GGMLQuantizationType[kind]
    for name, values in tensors.items():
        if family in ("mixtral", "granitemoe") and name.endswith("attn_q.weight.lora_b"):
            values = gguf_writing.interleaved(values, heads)
        writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(values), to), raw_dtype=to)
    gguf_writing.finish(writer)
    return path


def loaded(path: Path) -> LoadedModel:
    return load(path, load_config(None, overrides={"model.format": "f32"}), progress=False)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return loaded(QWEN3_MOE.write(tmp_path_factory.mktemp("base") / "model"))


@pytest.mark.parametrize("fused", [False, True])
def test_an_adapter_equals_the_peft_adapter_in_every_byte(tmp_path: Path, base: LoadedModel, fused: bool) -> None:
    deltas = Deltas(QWEN3_MOE, 5)
    peft = expert_deltas.forms(tmp_path, deltas)["modules"]
    found = load_adapter(write(tmp_path / "a.gguf", QWEN3_MOE, deltas.stacks(fused=fused)), base, "f32")
    assert found.id == load_adapter(peft, base, "f32").id


@pytest.mark.parametrize("case", [MIXTRAL, GRANITE_MOE], ids=lambda case: case.name)
def test_adapters_of_other_families_are_read_too(tmp_path: Path, case: FamilyCase) -> None:
    deltas, model = Deltas(case, 6), loaded(case.write(tmp_path / "base"))
    if case is MIXTRAL:
        config: dict[str, Any] = {"target_modules": ["q_proj", "w1", "w2", "w3"]}
        peft = expert_deltas.write(tmp_path / "peft", deltas.modules(), **config)
    else:
        places = ("block_sparse_moe.input_linear", "block_sparse_moe.output_linear")
        config = {"target_parameters": ["input_linear.weight", "output_linear.weight"]}
        peft = expert_deltas.write(tmp_path / "peft", deltas.parameters(places, is_straight=True), **config)
    found = load_adapter(write(tmp_path / "a.gguf", case, deltas.stacks()), model, "f32")
    assert found.id == load_adapter(peft, model, "f32").id


def test_an_adapter_of_gates_changes_gates_alone(tmp_path: Path, base: LoadedModel) -> None:
    tensors = {name: values for name, values in Deltas(QWEN3_MOE, 5).stacks().items() if ".ffn_gate_exps." in name}
    found = load_adapter(write(tmp_path / "a.gguf", QWEN3_MOE, tensors, "F16"), base, "f32")
    experts = range(QWEN3_MOE.config["num_experts"])
    assert set(found.tensors) == {f"layers.{layer}.experts.gate_up_proj[{i}]" for layer in (0, 2) for i in experts}


def merged(deltas: Deltas) -> Tensors:
    """Return the weights of gpt-oss with the products added, to plain matrices, as llama.cpp does."""
    made, scale = dict(deltas.case.tensors()), np.float32(ALPHA / RANK)
    for name, (a, b) in deltas.q.items():
        made[f"{name}.weight"] = made[f"{name}.weight"] + scale * b @ a
    for layer in deltas.layers:
        stack = f"model.layers.{layer}.mlp.experts"
        wide, down = made[f"{stack}.gate_up_proj"].copy(), made[f"{stack}.down_proj"].copy()
        for expert in range(deltas.count):
            a, b = deltas.gate_up[layer][expert]
            wide[expert, :, ::2] += scale * (b[: deltas.inner] @ a).T
            wide[expert, :, 1::2] += scale * (b[deltas.inner :] @ a).T
            a, b = deltas.down[layer][expert]
            down[expert] += scale * (b @ a).T
        made |= {f"{stack}.gate_up_proj": wide, f"{stack}.down_proj": down}
    return made


def test_adapters_of_gpt_oss_give_the_logits_of_merged_weights(tmp_path: Path) -> None:
    case, rows = GPT_OSS_PLAIN, range(0, 160, 3)
    deltas, settings = Deltas(case, 7), harness.settings(case, harness.VECTOR)
    whole = case.write(tmp_path / "merged")
    save_file(merged(deltas), whole / "model.safetensors", metadata={"format": "pt"})
    with harness.engine(whole, settings) as engine:
        expected = harness.logits(engine, case.prompt[:160], rows)
    path = write(tmp_path / "a.gguf", case, deltas.stacks())
    with harness.engine(case.write(tmp_path / "base"), settings) as engine:
        plain = harness.logits(engine, case.prompt[:160], rows)
        found = harness.logits(engine, case.prompt[:160], rows, adapters=harness.applied(engine, [(path, 1.0)]))
    assert np.abs(plain - expected).max() > 1
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)


UP, DOWN = "blk.0.ffn_up_exps.weight", "blk.2.ffn_down_exps.weight"


def cut(name: str, *index: Any) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.__setitem__(name, tensors[name][index])


def moved(name: str, other: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({other + name[-7:]: tensors[name]})


def both(*changes: Callable[[Tensors], object]) -> Callable[[Tensors], object]:
    return lambda tensors: [change(tensors) for change in changes]


BROKEN: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "an expert less": (cut(f"{UP}.lora_b", slice(8)), r"\(9, 3, 72\) and \(8, 40, 3\), \(9, 3, 72\) and \(9, 40, 3\)"),
    "other experts": (both(cut(f"{UP}.lora_a", slice(8)), cut(f"{UP}.lora_b", slice(8))), "are expected"),
    "another rank": (cut(f"{DOWN}.lora_a", slice(None), slice(2)), r"\(9, 2, 40\) and \(9, 72, 3\)"),
    "one for all experts": (
        both(cut(f"{UP}.lora_a", 0), cut(f"{UP}.lora_b", 0)),
        r"is F32 \(3, 72\), numbers in 3 dimensions",
    ),
    "experts of what has none": (cut("blk.1.attn_q.weight.lora_a", None), "numbers in 2 dimensions are expected"),
    "no B": (lambda tensors: tensors.pop(f"{DOWN}.lora_b"), "ffn_down_exps.weight.lora_b is missing"),
    "experts of a layer without": (
        both(moved(f"{UP}.lora_a", "blk.1.ffn_up_exps.weight"), moved(f"{UP}.lora_b", "blk.1.ffn_up_exps.weight")),
        "blk.1.ffn_up_exps.weight has no place",
    ),
    "fused beside its parts": (moved(f"{UP}.lora_a", "blk.0.ffn_gate_up_exps.weight"), "ffn_gate_up_exps.* no place"),
    "biases": (moved(f"{UP}.lora_a", "blk.0.ffn_up_exps.bias"), "ffn_up_exps.bias has no place"),
    "a magnitude": (
        lambda tensors: tensors.update({f"{UP}.lora_m": np.ones((9, 40), np.float32)}),
        "lora_m is neither A nor B",
    ),
    "NaN": (lambda tensors: tensors[f"{UP}.lora_a"].__setitem__((8, 0, 3), np.nan), "not finite"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_inconsistent_parts_are_refused_by_name(tmp_path: Path, base: LoadedModel, name: str) -> None:
    change, why = BROKEN[name]
    tensors = Deltas(QWEN3_MOE, 5).stacks()
    change(tensors)
    with pytest.raises(AdapterError, match=why) as caught:
        load_adapter(write(tmp_path / "a.gguf", QWEN3_MOE, tensors), base, "f32")
    assert "a.gguf" in str(caught.value) and caught.value.remedy


def test_experts_of_another_family_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", QWEN3_MOE, Deltas(QWEN3_MOE, 5).stacks())
    with pytest.raises(AdapterError, match=r"general\.architecture is 'qwen3moe', the base is a gpt_oss"):
        load_adapter(path, loaded(GPT_OSS_PLAIN.write(tmp_path / "base")), "f32")
