"""The config.json of known models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from infeng_core.api import UsageError, unknown_key_remedy
from infeng_core.api.formats import ModelConfig

COMMON: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float16",
}

SHAPES: dict[str, dict[str, Any]] = {
    "tinyllama-1.1b": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    "smollm2-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
    "llama-3.2-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": True,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
    },
}
"""Known shapes by name; entries override COMMON."""


@dataclass(frozen=True)
class Published:
    """A released model."""

    source: str  # URL of its config.json; ``config`` has the keys that determine sizes and terms
    parameters: int  # of the text model, as its release counts them
    config: Mapping[str, Any]


@cache
def published() -> Mapping[str, Published]:
    """Return released models of every family by name; SHAPES are not among them."""
    text = resources.files("infeng_bench").joinpath("published.json").read_text(encoding="utf-8")
    return {name: Published(**fields) for name, fields in json.loads(text).items()}


def hugging_face_config(name_or_file: str | Path) -> dict[str, Any]:
    """Return the config.json of one of SHAPES, of a published model, or in a file.

    Raises UsageError for an unknown name or an unreadable file, ModelError for a config that the engine cannot run.
    """
    text = str(name_or_file)
    if text in SHAPES:
        return {**COMMON, **SHAPES[text]}
    if text in published():
        return dict(published()[text].config)
    path = Path(name_or_file).expanduser()
    if path.suffix != ".json":
        remedy = f"{unknown_key_remedy(text, [*SHAPES, *published()])} A path to a config.json is taken as well"
        raise UsageError(f"synthetic model {text!r}", "there are no such shapes", remedy)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(str(path), error.strerror or str(error), "give a config.json that can be read") from error
    except ValueError as error:
        raise UsageError(str(path), f"not JSON: {error}", "give a model's config.json") from error
    if not isinstance(data, dict):
        raise UsageError(str(path), "not a JSON object", "give a model's config.json")
    ModelConfig.from_hf(data, path)  # raises ModelError
    return data


def model_config(name_or_file: str | Path) -> ModelConfig:
    """Return the sizes of a model; arguments and errors as in ``hugging_face_config``."""
    return ModelConfig.from_hf(hugging_face_config(name_or_file), f"{name_or_file}")
