"""Gemma 3 (text): Gemma 2 with norms over each head of q and k in place of the cap of scores, and two thetas.

Gemma 3 (Gemma team, 2025); ``models/gemma3/modeling_gemma3.py`` of transformers. Five layers of six have a window and a
theta of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.models.gemma2 import ACTIVATION, HEAD_DIM, TIED, graph
from infeng_core.models.rope_config import RopeConfig
from infeng_core.models.terms import windows
from infeng_core.models.weights import BOTH_NORMS, Layout, decoder

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig
    from infeng_core.models.fields import Fields

__all__ = ["ACTIVATION", "ARCHITECTURES", "FAMILY", "HEAD_DIM", "THETA", "TIED", "graph", "terms", "weights"]

FAMILY = "gemma3_text"
ARCHITECTURES = ("Gemma3ForCausalLM",)
THETA = 1000000.0
LOCAL_THETA = 10000.0


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read windows, the rope of layers with one, and scales; the embeddings are scaled by the root of their width."""
    theta = fields.number("rope_local_base_freq", 1e-3, 1e15, LOCAL_THETA)
    pattern = fields.integer("sliding_window_pattern", 1, 1 << 20, 6)
    capped = fields.has("final_logit_softcapping")
    return {
        "windows": windows(fields, config.layers, default=4096, pattern=pattern),
        "local_rope": RopeConfig.from_hf(fields, config.max_positions, theta, "sliding_attention", plain=True),
        "attention_scale": fields.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0) ** -0.5,
        "logit_softcap": fields.number("final_logit_softcapping", 1e-3, 1e6) if capped else 0.0,
        "embedding_scale": config.hidden**0.5,
    }


def weights(config: ModelConfig) -> Layout:
    """Return the tensors of a Gemma 3 of this shape."""
    return decoder(config, norms=BOTH_NORMS, qk_norm="head")
