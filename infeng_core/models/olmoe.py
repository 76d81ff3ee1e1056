"""OLMoE: a mixture of experts in each layer, and norms over all heads of q and of k.

OLMoE (Muennighoff et al., 2024); ``models/olmoe/modeling_olmoe.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.models.config_keys import experts
from infeng_core.models.decoder import graph
from infeng_core.models.weights import ExpertNames, Layout, decoder

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig
    from infeng_core.models.typed_fields import Fields

__all__ = ["ARCHITECTURES", "DEFAULTS", "FAMILY", "graph", "terms", "weights"]

FAMILY = "olmoe"
ARCHITECTURES = ("OlmoeForCausalLM",)
DEFAULTS = {"rms_norm_eps": 1e-5}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the experts, which are as wide as ``intermediate_size`` says."""
    return {
        **experts(fields, inner="intermediate_size", count=64, chosen=8),
        "share_of_chosen": fields.flag("norm_topk_prob", False),
    }


def weights(config: ModelConfig) -> Layout:
    """Return the tensors of an OLMoE of this shape."""
    return decoder(config, qk_norm="width", experts=ExpertNames())
