"""OLMo 2: blocks norm their outputs instead of their inputs, and q and k over all heads.

2 OLMo 2 Furious (OLMo et al., 2025); ``models/olmo2/modeling_olmo2.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.models.decoder import graph
from infeng_core.models.weights import POST_NORMS, Layout, decoder

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig

__all__ = ["ARCHITECTURES", "FAMILY", "graph", "weights"]

FAMILY = "olmo2"
ARCHITECTURES = ("Olmo2ForCausalLM",)


def weights(config: ModelConfig) -> Layout:
    """Return the tensors of an OLMo 2 of this shape."""
    return decoder(config, norms=POST_NORMS, qk_norm="width")
