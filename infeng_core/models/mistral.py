"""Mistral: Llama's blocks, in early ones with attention that sees a window.

Mistral 7B (Jiang et al., 2023); ``models/mistral/modeling_mistral.py`` of transformers. ``sliding_window`` is null in
files of models without one; a file without the key has a window of 4096.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.models.config_keys import windows
from infeng_core.models.decoder import graph
from infeng_core.models.weights import Layout, decoder

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig
    from infeng_core.models.typed_fields import Fields

__all__ = ["ARCHITECTURES", "DEFAULTS", "FAMILY", "WRAPPERS", "graph", "terms", "weights"]

FAMILY = "mistral"
ARCHITECTURES = ("MistralForCausalLM",)
WRAPPERS = ("Mistral3ForConditionalGeneration",)
DEFAULTS = {"sliding_window": 4096}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the window, which all layers have."""
    return {"windows": windows(fields, config.layers)}


def weights(config: ModelConfig) -> Layout:
    """Return the tensors of a Mistral of this shape, which has no biases."""
    return decoder(config, qkv_bias=False, o_bias=False)
