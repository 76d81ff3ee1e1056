"""Qwen2-MoE and Qwen1.5-MoE: Qwen2 with a mixture of experts, and one expert that all rows go to, behind a gate.

Qwen2 technical report (Yang et al., 2024); ``models/qwen2_moe/modeling_qwen2_moe.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.models import qwen3_moe
from infeng_core.models.decoder import graph
from infeng_core.models.weights import ExpertNames, Layout, decoder

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig
    from infeng_core.models.typed_fields import Fields

__all__ = ["ARCHITECTURES", "DEFAULTS", "FAMILY", "graph", "terms", "weights"]

FAMILY = "qwen2_moe"
ARCHITECTURES = ("Qwen2MoeForCausalLM",)
DEFAULTS = {
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "decoder_sparse_step": 1,
    "qkv_bias": True,
}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the experts, the layers that have none, and the shared one; no release has windows or lacks the biases."""
    if not fields.flag("qkv_bias", True) or fields.flag("use_sliding_window", False):
        key = "use_sliding_window" if fields.data.get("use_sliding_window") else "qkv_bias"
        fields.fail(key, f"is not what family {FAMILY} runs", "use a model as it was released")
    return {
        **qwen3_moe.terms(fields, config, count=60, chosen=4),
        "shared_intermediate": fields.integer("shared_expert_intermediate_size", 1, 1 << 20),
    }


def weights(config: ModelConfig) -> Layout:
    """Return the tensors of a Qwen2-MoE of this shape."""
    return decoder(config, qkv_bias=True, o_bias=False, experts=ExpertNames())
