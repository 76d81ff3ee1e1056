"""Qwen2 and Qwen2.5: Llama's blocks, with biases on q, k and v and none elsewhere.

Qwen2 technical report (Yang et al., 2024); ``models/qwen2/modeling_qwen2.py`` of transformers, where the biases are
part of the architecture and no field of config.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.models.llama import graph
from infeng_core.models.weights import Layout, decoder

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig
    from infeng_core.models.fields import Fields

__all__ = ["ARCHITECTURES", "FAMILY", "check", "graph", "weights"]

FAMILY = "qwen2"
ARCHITECTURES = ("Qwen2ForCausalLM",)


def check(fields: Fields) -> None:
    """Raise ModelError for a config.json that asks for sliding windows, which few models of the family use."""
    layers = fields.data.get("layer_types")
    slides = isinstance(layers, list) and any(layer != "full_attention" for layer in layers)
    if fields.flag("use_sliding_window", False) or slides:
        key = "layer_types" if slides else "use_sliding_window"
        fields.fail(key, "asks for attention in sliding windows, which is not run", "use a model with full attention")


def weights(config: ModelConfig) -> Layout:
    """Return the tensors of a Qwen2 of this shape."""
    return decoder(config, qkv_bias=True, o_bias=False)
