"""Every family that GGUF has a row for is, out of its file, the model that it is out of a Hugging Face directory."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import gguf_writing
import numpy as np
import pytest
import tiny_model
from infeng_convert.api import parse_config
from infeng_gguf.architectures import ARCHITECTURES
from infeng_gguf.checkpoint import GgufCheckpoint
from numpy.typing import NDArray

from infeng_core.models.config import ModelConfig
from infeng_core.models.families import families
from infeng_core.models.weights import Part, layout

WIDTH = 16
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": WIDTH,
    "vocab_size": tiny_model.VOCAB,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 20000.0,
    "tie_word_embeddings": True,
}
LONG = {
    "type": "longrope",
    "short_factor": [1.0 + i / 8 for i in range(WIDTH // 2)],
    "long_factor": [2.0 + i / 4 for i in range(WIDTH // 2)],
}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": ({}, {}),
    "qwen2": ({}, {}),
    "qwen3": ({"partial_rotary_factor": 0.5}, {"rope.dimension_count": WIDTH // 2}),
    "smollm3": ({}, {}),
    "granite": (
        {
            "attention_multiplier": 0.125,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.25,
            "logits_scaling": 8.0,
        },
        {"attention.scale": 0.125, "embedding_scale": 12.0, "residual_scale": 0.25, "logit_scale": 8.0},
    ),
    "starcoder2": (
        {"norm_epsilon": 0.001, "sliding_window": 32},
        {
            "attention.layer_norm_rms_epsilon": None,
            "attention.layer_norm_epsilon": 0.001,
            "attention.sliding_window": 32,
        },
    ),
    "olmo2": ({}, {}),
    "phi3": (
        {"rope_scaling": LONG, "original_max_position_embeddings": 64, "sliding_window": 32},
        {"rope.scaling.original_context_length": 64, "attention.sliding_window": 32, "rope.scaling.attn_factor": 1.25},
    ),
    "gemma2": (
        {"query_pre_attn_scalar": WIDTH, "sliding_window": 32, "attn_logit_softcapping": 40.0,
         "final_logit_softcapping": 20.0},
        {"attention.sliding_window": 32, "attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0},
    ),
    "gemma3": ({"query_pre_attn_scalar": WIDTH, "sliding_window": 32}, {"attention.sliding_window": 32}),
}  # fmt: skip
"""What config.json says beyond SIZES, and the keys that llama.cpp's exporter makes of it; None: it lacks the key."""

RUN = [name for name in CASES if ARCHITECTURES[name].family in families()]


def parts_of(config: ModelConfig) -> dict[str, tuple[Part, tuple[int, ...]]]:
    """Return the parts of a model by the tensor that holds them, with the shape of all of it."""
    made = layout(config)
    found = {}
    for spec in made.tensors:
        found |= {part.source: (part, (getattr(part, "source_rows", part.rows), spec.k)) for part in spec.parts}
    for vector in made.vectors:
        found |= {part.source: (part, (part.rows,)) for part in vector.parts}
    return found


def exported(name: str, values: NDArray[Any], arch: str) -> NDArray[Any]:
    """Change a tensor as the exporter does."""
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return values + np.float32(1)
    heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
    if heads and arch in ("llama", "smollm3", "granite"):
        return gguf_writing.interleaved(values, heads)
    return values


def write(path: Path, arch: str, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Path:
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    table = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(str(path), arch)
    numbers = gguf_writing.numbers(config, WIDTH if arch.startswith(("gemma", "qwen3")) else 0)
    gguf_writing.add_keys(writer, numbers | CASES[arch][1])
    gguf_writing.add_vocabulary(writer, json.loads(tiny_model.tokenizer().to_str()))
    for name, values in tensors.items():
        theirs = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        writer.add_tensor(theirs, np.ascontiguousarray(exported(name, values, arch)))
    if "rope_scaling" in config:
        writer.add_tensor("rope_factors_long.weight", np.array(LONG["long_factor"], np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(LONG["short_factor"], np.float32))
    gguf_writing.finish(writer)
    return path


@pytest.mark.parametrize("arch", RUN)
def test_a_family_has_one_config_from_a_gguf_and_from_a_checkpoint(tmp_path: Path, arch: str) -> None:
    row = ARCHITECTURES[arch]
    config = SIZES | CASES[arch][0] | {"architectures": [row.model_class], "model_type": row.family}
    wanted = parse_config(config, "config.json")
    parts = parts_of(wanted)
    random = np.random.default_rng(1)
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, (_, shape) in parts.items()}
    checkpoint = GgufCheckpoint(write(tmp_path / "m.gguf", arch, config, tensors))
    found = dataclasses.replace(checkpoint.config, bos_id=wanted.bos_id, eos_ids=wanted.eos_ids)
    assert found == wanted
    for spec in (*checkpoint.layout.tensors, *checkpoint.layout.vectors):
        for part in spec.parts:
            begin = getattr(part, "begin", 0)
            expected = tensors[part.source][begin : begin + part.rows]
            if arch.startswith("gemma") and expected.ndim == 1:
                expected = exported(part.source, expected, arch) - np.float32(1)
            assert np.array_equal(checkpoint.array(part), expected), part.source


def test_the_largest_gemmas_scale_scores_by_another_width() -> None:
    config = {"num_hidden_layers": 46, "hidden_size": 4608, "num_attention_heads": 32, "head_dim": 128}
    assert ARCHITECTURES["gemma2"].derived(config)["query_pre_attn_scalar"] == 144
    assert ARCHITECTURES["gemma2"].derived(config | {"num_hidden_layers": 42})["query_pre_attn_scalar"] == 128


def test_an_architecture_maps_tensor_names_both_ways() -> None:
    for row in ARCHITECTURES.values():
        for here, there in row.blocks.items():
            assert row.theirs(f"blk.7.{here}.weight") == f"model.layers.7.{there}.weight"
            assert row.ours(f"model.layers.7.{there}.weight") == f"blk.7.{here}.weight"
        for here, there in row.parameters.items():
            assert row.theirs(f"blk.7.{here}") == f"model.layers.7.{there}"
            assert row.ours(f"model.layers.7.{there}") == f"blk.7.{here}"
        assert row.theirs("blk.07.attn_norm.weight") is None and row.theirs("blk.7.attn_norm.weight.x") is None
    assert math.isclose(sum(row.norm_offset for row in ARCHITECTURES.values()), 2.0)
