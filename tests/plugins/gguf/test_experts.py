"""Mixtures of experts in GGUF, written with the format's own library: the models that they are out of safetensors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import gguf_writing
import numpy as np
import pytest
import tiny_model
from e2e import harness
from gguf_calls import look_at
from goldens.families import GRANITE_MOE, MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE, FamilyCase
from infeng_convert.api import parse_config
from infeng_gguf.checkpoint import GgufCheckpoint
from numpy.typing import NDArray
from safetensors.numpy import save_file

from infeng_core import SamplingParams
from infeng_core.errors import ModelError
from infeng_core.formats.format_choice import BASE, FormatChoice
from infeng_core.formats.quant import builtin_format

Tensors = dict[str, NDArray[np.float32]]


def sized(case: FamilyCase, **more: Any) -> FamilyCase:
    """Return a case whose rows are whole blocks of 32."""
    config = case.config | {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 256, **more}
    return dataclasses.replace(case, config=config, dense=())


COUNTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
LOCAL = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
GRANITE = {"attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
           "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling"}  # fmt: skip
WIDTH = {"expert_feed_forward_length": "moe_intermediate_size"}
SHARED = {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}

CASES: dict[str, tuple[FamilyCase, str, Mapping[str, str]]] = {
    "qwen3moe": (sized(QWEN3_MOE, moe_intermediate_size=32, mlp_only_layers=[]), "qwen3moe", COUNTS | WIDTH),
    "qwen2moe": (
        sized(QWEN2_MOE, moe_intermediate_size=32, shared_expert_intermediate_size=64),
        "qwen2moe",
        COUNTS | WIDTH | SHARED,
    ),
    "olmoe": (sized(OLMOE), "olmoe", COUNTS),
    "mixtral": (sized(MIXTRAL), "llama", LOCAL),
    "granitemoe": (sized(GRANITE_MOE), "granitemoe", LOCAL | GRANITE),
}
"""Case, general.architecture, and keys of the metadata with those of config.json that they hold."""

PARTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}


def as_exported(case: FamilyCase, tensors: Tensors, layout: str) -> Tensors:
    """Return the tensors under the names and in the shapes of llama.cpp's exporter.

    layout: of experts, "merged", "split" as in files before April 2024, or "fused" gates and ups.
    """
    config, found, experts = case.config, {}, {}
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2MOE, 4)
    for name, values in tensors.items():
        layer = name.split(".")[2] if name.startswith("model.layers.") else ""
        if ".experts." in name:
            expert, part = name.split(".experts.")[1].split(".")[:2]
            experts.setdefault((layer, PARTS[part]), {})[int(expert)] = values
        elif "_linear." in name:
            parts = (
                {"down": values} if "output" in name else dict(zip(("gate", "up"), np.split(values, 2, 1), strict=True))
            )
            experts |= {(layer, part): dict(enumerate(each)) for part, each in parts.items()}
        elif name.endswith((".q_norm.weight", ".k_norm.weight")):
            found[f"blk.{layer}.attn_{name.split('.')[-2]}.weight"] = values
        else:
            theirs = table.get_name(name, try_suffixes=(".weight", ".bias"))
            head = heads.get(name.split(".")[-2], 0) if config["model_type"] in ("mixtral", "granitemoe") else 0
            if head:
                values = gguf_writing.interleaved(values, head)
            found[theirs] = values.reshape(-1) if len(values) == 1 else values
    stacked = {key: np.stack([each[index] for index in range(len(each))]) for key, each in experts.items()}
    for (layer, part), values in stacked.items():
        if layout == "split":
            found |= {f"blk.{layer}.ffn_{part}.{index}.weight": one for index, one in enumerate(values)}
        elif layout == "merged" or part == "down":
            found[f"blk.{layer}.ffn_{part}_exps.weight"] = values
        elif part == "up":
            found[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate([stacked[layer, "gate"], values], axis=1)
    return found


def write(
    path: Path,
    name: str,
    kind: str = "F32",
    *,
    layout: str = "merged",
    keys: Mapping[str, Any] | None = None,
    change: Callable[[Tensors], object] = lambda tensors: None,
) -> Path:
    """Write a case; ``kind``: of the matrices but the router, ``keys``: in place of the case's own, None for none."""
    case, arch, own = CASES[name]
    config = case.config
    writer = gguf.GGUFWriter(str(path), arch)
    values = gguf_writing.numbers(config, case.head_dim) | {here: config[there] for here, there in own.items()}
    gguf_writing.add_keys(writer, {**values, **(keys or {})})
    gguf_writing.add_vocabulary(writer, json.loads(tiny_model.tokenizer(config["vocab_size"]).to_str()))
    tensors = as_exported(case, dict(case.tensors()), layout)
    change(tensors)
    for theirs, array in tensors.items():
        as_float = array.ndim == 1 or "ffn_gate_inp" in theirs
        to = gguf.GGMLQuantizationType["F32" if as_float else kind]
        writer.add_tensor(theirs, gguf.quantize(np.ascontiguousarray(array), to), raw_dtype=to)
    gguf_writing.finish(writer)
    return path


def rounded(name: str, kind: str) -> Tensors:
    """Return a case's tensors as the file holds them, in the order and under the names of the checkpoint."""
    case, to = CASES[name][0], gguf.GGMLQuantizationType[kind]
    floats = ("gate.weight", "router.layer.weight", "shared_expert_gate.weight")
    return {
        one: values
        if values.ndim == 1 or one.endswith((f".{floats[0]}", *floats[1:]))
        else gguf.dequantize(gguf.quantize(values, to), to)
        for one, values in case.tensors()
    }


def expected(tensors: Tensors, part: Any) -> NDArray[np.float32]:
    """Return the rows of a part out of a checkpoint's tensors."""
    values = tensors[part.source]
    return values.reshape(-1, values.shape[-1])[part.begin :][: part.rows] if values.ndim > 1 else values


@pytest.mark.parametrize(
    ("name", "kind", "layout"),
    [
        ("qwen3moe", "F16", "merged"),
        ("qwen2moe", "Q8_0", "merged"),
        ("olmoe", "Q4_0", "merged"),
        ("mixtral", "Q4_0", "split"),
        ("granitemoe", "Q8_0", "merged"),
        ("qwen3moe", "F32", "fused"),
    ],
)
def test_experts_equal_those_of_the_checkpoint(tmp_path: Path, name: str, kind: str, layout: str) -> None:
    case, tensors = CASES[name][0], rounded(name, kind)
    checkpoint = GgufCheckpoint(write(tmp_path / "m.gguf", name, kind, layout=layout))
    wanted = parse_config(case.config, "config.json")
    besides = {"bos_id": wanted.bos_id, "eos_ids": wanted.eos_ids, "attention_bias": wanted.attention_bias}
    assert dataclasses.replace(checkpoint.config, **besides) == wanted
    for spec in checkpoint.layout.tensors:
        for part in spec.parts:
            found = checkpoint.array(part).astype(np.float32)
            assert np.array_equal(found, expected(tensors, part)), part.source
            assert case.config["model_type"] in ("mixtral", "granitemoe") or checkpoint.name(part) == part.source
    for vector in checkpoint.layout.vectors:
        assert np.array_equal(checkpoint.array(vector.parts[0]), tensors[vector.parts[0].source])


@pytest.mark.parametrize(("kind", "format"), [("Q4_0", "int4-g32"), ("Q8_0", "int8-g32")])
def test_integers_are_kept_and_the_router_keeps_its_precision(tmp_path: Path, kind: str, format: str) -> None:
    checkpoint = GgufCheckpoint(write(tmp_path / "m.gguf", "qwen2moe", kind))
    used = checkpoint.formats(FormatChoice("int4-g64", {}, frozenset({BASE})), builtin_format)
    routers = {name for name in used if name.endswith((".router", ".shared_gate"))}
    assert len(routers) == 4 and {used[name] for name in routers} == {"bf16"}
    assert {format_ for name, format_ in used.items() if name not in routers} == {format}
    assert checkpoint.changes(used) == {}
    for part in (
        checkpoint.layout.tensors[-2].parts[4],
        next(s for s in checkpoint.layout.tensors if s.experts).parts[3],
    ):
        kept = checkpoint.kept(part, builtin_format(format))
        assert kept is not None
        values = kept.codes.reshape(len(kept.codes), -1, 32) * kept.scales[:, :, None]
        assert np.array_equal(values.reshape(kept.codes.shape), checkpoint.array(part))


def same_logits(directory: Path, name: str, kind: str) -> None:
    """Compare a file with the safetensors directory of its dequantized weights, in f32."""
    case = CASES[name][0]
    plain = case.write(directory / "plain")
    save_file(rounded(name, kind), plain / "model.safetensors", metadata={"format": "pt"})
    prompt, found = case.prompt[:40].tolist(), []
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    for model in (plain, write(directory / "m.gguf", name, kind)):
        with harness.engine(model, harness.F32, rows=64) as engine:
            tokens = engine.generate([prompt], greedy)[0].token_ids
            found.append((harness.logits(engine, prompt, range(40)), list(tokens)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.slow
def test_a_file_gives_the_answers_of_its_checkpoint(tmp_path: Path) -> None:
    same_logits(tmp_path, "qwen2moe", "Q4_0")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("name", CASES)
def test_every_architecture_gives_the_answers_of_its_checkpoint(tmp_path: Path, name: str, kind: str) -> None:
    same_logits(tmp_path, name, kind)


def dropped(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


def copied(name: str, other: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.__setitem__(other, tensors[name])


def cut(name: str, *index: Any) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.__setitem__(name, tensors[name][index])


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no count of those chosen": ({"keys": {"expert_used_count": None}}, "qwen3moe.expert_used_count is missing"),
    "more chosen than there are": ({"keys": {"expert_used_count": 10}}, "expert_used_count is 10.*from 1 to 9"),
    "no experts": ({"keys": {"expert_count": None}}, "qwen3moe.expert_count is missing"),
    "a million experts": ({"keys": {"expert_count": 1 << 20}}, "expert_count is 1048576.*from 1 to 4096"),
    "one expert too many": ({"keys": {"expert_count": 10}}, r"ffn_gate_inp\.weight: is \(9, 64\)"),
    "another gating": ({"keys": {"expert_gating_func": 2}}, "expert_gating_func is 2, which is not run"),
    "scaled experts": ({"keys": {"expert_weights_scale": 2.5}}, "expert_weights_scale is 2.5"),
    "groups of experts": ({"keys": {"expert_group_count": 4}}, "expert_group_count is 4"),
    "an expert less": ({"change": cut("blk.1.ffn_up_exps.weight", slice(8))}, r"ffn_up_exps\.weight: is \(8, 32, 64\)"),
    "experts in two dimensions": (
        {"change": cut("blk.0.ffn_down_exps.weight", 0)},
        r"blk\.0\.ffn_down_exps\.weight: is \(64, 32\), the metadata says \(9, 64, 32\)",
    ),
    "no experts of a layer": ({"change": dropped("blk.2.ffn_gate_exps.weight")}, r"blk\.2\.ffn_gate_exps.* is missing"),
    "no router": ({"change": dropped("blk.0.ffn_gate_inp.weight")}, r"blk\.0\.ffn_gate_inp\.weight: is missing"),
    "a split expert that is missing": (
        {"layout": "split", "change": dropped("blk.1.ffn_down.4.weight")},
        r"blk\.1\.ffn_down\.4\.weight: is missing",
    ),
    "a split expert beyond the last": (
        {"layout": "split", "change": copied("blk.0.ffn_up.8.weight", "blk.0.ffn_up.9.weight")},
        r"blk\.0\.ffn_up\.9\.weight: has no place",
    ),
    "split experts beside merged ones": (
        {"change": copied("blk.0.ffn_gate_inp.weight", "blk.0.ffn_up.0.weight")},
        r"blk\.0\.ffn_up\.0\.weight: has no place",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_experts_that_do_not_fit_the_metadata_are_refused_by_name(tmp_path: Path, name: str) -> None:
    changes, why = BROKEN[name]
    with pytest.raises(ModelError, match=why) as caught:
        GgufCheckpoint(write(tmp_path / "m.gguf", "qwen3moe", **changes))
    assert caught.value.remedy


def test_widths_missing_in_older_files_are_derived(tmp_path: Path) -> None:
    def wide(tensors: Tensors) -> None:
        for name in [name for name in tensors if "_exps" in name]:
            tensors[name] = np.zeros((6, 64, 48) if "down" in name else (6, 48, 64), np.float32)

    def shared(tensors: Tensors) -> None:
        wide(tensors)
        for name in [name for name in tensors if name.endswith("_shexp.weight") and "inp" not in name]:
            tensors[name] = np.zeros((64, 96) if "down" in name else (96, 64), np.float32)

    keys = {"expert_feed_forward_length": None, "expert_shared_feed_forward_length": None}
    config = GgufCheckpoint(write(tmp_path / "m.gguf", "qwen2moe", keys=keys, change=shared)).config
    assert (config.expert_intermediate, config.shared_intermediate) == (96 // 2, 96)


def test_a_survey_counts_the_tensors_of_experts_once(tmp_path: Path) -> None:
    made = look_at(write(tmp_path / "m.gguf", "qwen3moe", "Q4_0"), FormatChoice("f32"), builtin_format)
    assert made.why_not == "" and made.stored["Q4_0"] == 2 + 3 * 7  # ends; q, k, v, o and three of experts by layer
    assert made.parameters - made.active_parameters == 3 * 6 * 3 * 32 * 64  # of three layers, six of nine experts
