"""gpt-oss: sinks in attention, a window in every other layer, biases everywhere, experts with clamped gates.

gpt-oss-120b and gpt-oss-20b model card (OpenAI, 2025); ``models/gpt_oss/modeling_gpt_oss.py`` of transformers. Weights
are a softmax over the chosen experts; an expert computes (up + 1) * gate * sigmoid(slope * gate) before down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.shared_keys import experts, windows

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig

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


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read windows, the experts (``intermediate_size`` wide), and the bounds of their gates."""
    return {
        **experts(fields, inner="intermediate_size", count=128, chosen=4),
        "share_of_chosen": True,
        "windows": windows(fields, config.layers, pattern=2),
        "activation": "swiglu",
        "gate_slope": fields.number("swiglu_alpha", 1e-3, 1e3),
        "gate_limit": fields.number("swiglu_limit", 1e-3, 1e6),
    }
