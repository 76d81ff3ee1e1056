"""Granite 3 MoE: Granite with a mixture of experts in each layer, weighted by a softmax over the chosen experts.

``models/granitemoe/modeling_granitemoe.py`` of transformers. Checkpoints hold all experts in one tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.families import granite
from infeng_convert.configs.shared_keys import experts

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig


MODULES = {
    "block_sparse_moe.router.layer": "block_sparse_moe.router",
    "block_sparse_moe.input_linear.weight": "block_sparse_moe.experts.gate_up_proj",
    "block_sparse_moe.output_linear.weight": "block_sparse_moe.experts.down_proj",
}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read Granite's factors and the experts, ``intermediate_size`` wide."""
    return {
        **granite.terms(fields, config),
        **experts(fields, inner="intermediate_size", count=8, chosen=2),
        "share_of_chosen": True,
    }
