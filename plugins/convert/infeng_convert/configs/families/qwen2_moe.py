"""Qwen2-MoE and Qwen1.5-MoE: Qwen2 with a mixture of experts, and a gated shared expert that all rows go to.

Qwen2 technical report (Yang et al., 2024); ``models/qwen2_moe/modeling_qwen2_moe.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.families import qwen3_moe

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig

DEFAULTS = {
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "decoder_sparse_step": 1,
    "qkv_bias": True,
}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the experts, the layers without experts, and the shared expert; no release has windows or lacks the
    biases."""
    if not fields.flag("qkv_bias", True) or fields.flag("use_sliding_window", False):
        key = "use_sliding_window" if fields.data.get("use_sliding_window") else "qkv_bias"
        fields.fail(key, f"is not what family {config.family} runs", "use a model as it was released")
    return {
        **qwen3_moe.terms(fields, config, count=60, chosen=4),
        "shared_intermediate": fields.integer("shared_expert_intermediate_size", 1, 1 << 20),
    }
