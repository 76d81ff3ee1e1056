"""StarCoder2: LayerNorm, biases on all linears, an MLP of GELU without a gate, a window in all layers.

StarCoder 2 and The Stack v2 (Lozhkov et al., 2024); ``models/starcoder2/modeling_starcoder2.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.shared_keys import windows

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig

DEFAULTS = {
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096,
    "norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "use_bias": True,
}
STATES = {"mlp_type": ("default",), "norm_type": ("layer_norm",)}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the epsilon, the window, which all layers have, and the biases, which all linears have or none."""
    has_biases = fields.flag("use_bias")
    return {
        "rms_eps": fields.number("norm_epsilon", 1e-12, 1.0),
        "windows": windows(fields, config.layers),
        "attention_bias": has_biases,
        "mlp_bias": has_biases,
    }
