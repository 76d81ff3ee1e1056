"""Mixtral: Mistral with a mixture of experts in each layer, weighted by shares among the chosen experts.

Mixtral of Experts (Jiang et al., 2024); ``models/mixtral/modeling_mixtral.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.shared_keys import experts, windows

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig

DEFAULTS = {"rms_norm_eps": 1e-5, "rope_theta": 1e6}

MODULES = {"block_sparse_moe.gate": "mlp.gate"}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the experts (``intermediate_size`` wide) and the window of all layers."""
    return {
        **experts(fields, inner="intermediate_size", count=8, chosen=2),
        "share_of_chosen": True,
        "windows": windows(fields, config.layers),
    }
