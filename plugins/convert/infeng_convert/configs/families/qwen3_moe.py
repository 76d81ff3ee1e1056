"""Qwen3-MoE: Qwen3 with a mixture of experts in place of the feed-forward part, in all layers or in some.

Qwen3 technical report (Yang et al., 2025); ``models/qwen3_moe/modeling_qwen3_moe.py`` of transformers. Weights are
shares of a softmax over all experts; if ``norm_topk_prob`` is set, the chosen shares are scaled to sum to 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.shared_keys import experts, switched_windows

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig

DEFAULTS = {
    "sliding_window": 4096,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
}
STATES = {"use_qk_norm": (True,)}


def terms(fields: Fields, config: ModelConfig, count: int = 128, chosen: int = 8) -> dict[str, Any]:
    """Read the experts, the layers without experts, and the window that ``use_sliding_window`` gives to all layers."""
    every = fields.integer("decoder_sparse_step", 1, 1 << 20)
    dense = set(fields.integers("mlp_only_layers", 0, 1 << 20))
    return {
        **experts(fields, inner="moe_intermediate_size", count=count, chosen=chosen),
        "share_of_chosen": fields.flag("norm_topk_prob", False),
        "dense_layers": tuple(i for i in range(config.layers) if i in dense or (i + 1) % every),
        "windows": switched_windows(fields, config.layers),
    }
