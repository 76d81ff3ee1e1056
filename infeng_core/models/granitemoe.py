"""Granite 3 MoE: Granite with a mixture of experts in each layer, whose weights are a softmax over those chosen.

``models/granitemoe/modeling_granitemoe.py`` of transformers. Checkpoints hold all experts in one tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.models import granite
from infeng_core.models.config_keys import experts
from infeng_core.models.decoder import graph
from infeng_core.models.weights import ExpertNames, Layout, decoder

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig
    from infeng_core.models.typed_fields import Fields

__all__ = ["ARCHITECTURES", "FAMILY", "MODULES", "graph", "terms", "weights"]

FAMILY = "granitemoe"
ARCHITECTURES = ("GraniteMoeForCausalLM",)

MODULES = {
    "block_sparse_moe.router.layer": "block_sparse_moe.router",
    "block_sparse_moe.input_linear.weight": "block_sparse_moe.experts.gate_up_proj",
    "block_sparse_moe.output_linear.weight": "block_sparse_moe.experts.down_proj",
}

NAMES = ExpertNames(
    router="block_sparse_moe.router.layer",
    gate="",
    up="",
    down="",
    gate_up_stack="block_sparse_moe.input_linear.weight",
    down_stack="block_sparse_moe.output_linear.weight",
)


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read Granite's factors and the experts, which are as wide as ``intermediate_size`` says."""
    return {
        **granite.terms(fields, config),
        **experts(fields, inner="intermediate_size", count=8, chosen=2),
        "share_of_chosen": True,
    }


def weights(config: ModelConfig) -> Layout:
    """Return the tensors of a Granite MoE of this shape."""
    return decoder(config, experts=NAMES)
