"""gpt-oss: sinks in attention, a window in every other layer, biases everywhere, experts with clamped gates.

gpt-oss-120b and gpt-oss-20b model card (OpenAI, 2025); ``models/gpt_oss/modeling_gpt_oss.py`` of transformers. Weights
are a softmax over the experts chosen; of experts (up + 1) * gate * sigmoid(slope * gate) is what their gates make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.models.config_keys import experts, windows
from infeng_core.models.decoder import graph
from infeng_core.models.weights import ExpertNames, Layout, decoder

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig
    from infeng_core.models.typed_fields import Fields

__all__ = ["ARCHITECTURES", "DEFAULTS", "FAMILY", "ROPE", "graph", "terms", "weights"]

FAMILY = "gpt_oss"
ARCHITECTURES = ("GptOssForCausalLM",)
ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
DEFAULTS = {
    "attention_bias": True,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "sliding_window": 128,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
}

NAMES = ExpertNames(router="mlp.router", gate="", up="", down="", has_bias=True, is_turned=True)


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read windows, the experts, which are as wide as ``intermediate_size`` says, and where their gates end."""
    return {
        **experts(fields, inner="intermediate_size", count=128, chosen=4),
        "share_of_chosen": True,
        "windows": windows(fields, config.layers, pattern=2),
        "activation": "swiglu",
        "gate_slope": fields.number("swiglu_alpha", 1e-3, 1e3),
        "gate_limit": fields.number("swiglu_limit", 1e-3, 1e6),
    }


def weights(config: ModelConfig) -> Layout:
    """Return the tensors of a gpt-oss of this shape."""
    return decoder(config, experts=NAMES, sinks=True)
