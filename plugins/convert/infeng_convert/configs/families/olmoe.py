"""OLMoE: a mixture of experts in each layer, and norms over all heads of q and of k.

OLMoE (Muennighoff et al., 2024); ``models/olmoe/modeling_olmoe.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.shared_keys import experts

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig

DEFAULTS = {"rms_norm_eps": 1e-5}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the experts, ``intermediate_size`` wide."""
    return {
        **experts(fields, inner="intermediate_size", count=64, chosen=8),
        "share_of_chosen": fields.flag("norm_topk_prob", False),
    }
