"""Qwen2 and Qwen2.5: Llama's blocks, with biases on q, k and v and none elsewhere.

Qwen2 technical report (Yang et al., 2024); ``models/qwen2/modeling_qwen2.py`` of transformers, where the biases are
part of the architecture and no field of config.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.models.config_keys import switched_windows
from infeng_core.models.decoder import graph
from infeng_core.models.weights import Layout, decoder

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig
    from infeng_core.models.typed_fields import Fields

__all__ = ["ARCHITECTURES", "DEFAULTS", "FAMILY", "STATES", "graph", "terms", "weights"]

FAMILY = "qwen2"
ARCHITECTURES = ("Qwen2ForCausalLM",)
DEFAULTS = {"sliding_window": 4096, "max_window_layers": 28}
STATES = {"qkv_bias": (True,)}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the windows, which ``use_sliding_window`` allows and ``layer_types`` or ``max_window_layers`` places."""
    first = fields.integer("max_window_layers", 0, 1 << 20)
    found = switched_windows(fields, config.layers)
    if not fields.has("layer_types"):
        found = tuple(size if layer >= first else 0 for layer, size in enumerate(found))
    return {"windows": found if any(found) else ()}


def weights(config: ModelConfig) -> Layout:
    """Return the tensors of a Qwen2 of this shape."""
    return decoder(config, qkv_bias=True, o_bias=False)
