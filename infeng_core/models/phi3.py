"""Phi-3, Phi-3.5 and Phi-4-mini: Llama's blocks with q, k, v and gate, up fused, longrope, heads rotated in part.

Phi-3 technical report (Abdin et al., 2024); ``models/phi3/modeling_phi3.py`` of transformers. Early files name longrope
"su" or "yarn".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.models.config_keys import windows
from infeng_core.models.decoder import graph
from infeng_core.models.weights import Layout, decoder

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig
    from infeng_core.models.typed_fields import Fields

__all__ = ["ARCHITECTURES", "DEFAULTS", "FAMILY", "ROPE_NAMES", "ROTATES_PART", "graph", "terms", "weights"]

FAMILY = "phi3"
ARCHITECTURES = ("Phi3ForCausalLM",)
DEFAULTS = {"original_max_position_embeddings": 4096}
ROPE_NAMES = {"yarn": "longrope"}
ROTATES_PART = True


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the window, which all layers have."""
    return {"windows": windows(fields, config.layers)}


def weights(config: ModelConfig) -> Layout:
    """Return the tensors of a Phi-3 of this shape, which has no biases."""
    return decoder(config, qkv_bias=False, o_bias=False, fused=True)
