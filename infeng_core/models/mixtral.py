"""Mixtral: Mistral with a mixture of experts in each layer, whose weights are shares of those chosen.

Mixtral of Experts (Jiang et al., 2024); ``models/mixtral/modeling_mixtral.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.models.config_keys import experts, windows
from infeng_core.models.decoder import graph
from infeng_core.models.weights import ExpertNames, Layout, decoder

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig
    from infeng_core.models.typed_fields import Fields

__all__ = ["ARCHITECTURES", "DEFAULTS", "FAMILY", "MODULES", "graph", "terms", "weights"]

FAMILY = "mixtral"
ARCHITECTURES = ("MixtralForCausalLM",)
DEFAULTS = {"rms_norm_eps": 1e-5, "rope_theta": 1e6}

MODULES = {"block_sparse_moe.gate": "mlp.gate"}

NAMES = ExpertNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{}.w1.weight",
    up="block_sparse_moe.experts.{}.w3.weight",
    down="block_sparse_moe.experts.{}.w2.weight",
)


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the experts, which are as wide as ``intermediate_size`` says, and the window of all layers."""
    return {
        **experts(fields, inner="intermediate_size", count=8, chosen=2),
        "share_of_chosen": True,
        "windows": windows(fields, config.layers),
    }


def weights(config: ModelConfig) -> Layout:
    """Return the tensors of a Mixtral of this shape."""
    return decoder(config, qkv_bias=False, o_bias=False, experts=NAMES)
