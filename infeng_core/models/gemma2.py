"""Gemma 2: norms before and after blocks by 1 + w, gated GELU, a window in every other layer, soft caps.

Gemma 2 (Gemma team, 2024); ``models/gemma2/modeling_gemma2.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.models import decoder as blocks
from infeng_core.models.terms import windows
from infeng_core.models.weights import BOTH_NORMS, Layout, decoder

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig
    from infeng_core.models.fields import Fields
    from infeng_core.models.ops import Graph

FAMILY = "gemma2"
ARCHITECTURES = ("Gemma2ForCausalLM",)
TIED = True
HEAD_DIM = 256
ACTIVATION = "gelu_pytorch_tanh"


def graph(config: ModelConfig) -> Graph:
    """Return the forward pass of a Gemma 2 of this shape."""
    return blocks.graph(config, norm_offset=1.0)


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read windows, caps and scales; the embeddings are scaled by the root of their width."""

    def cap(key: str, default: float) -> float:
        """Return a cap; null means none."""
        return 0.0 if key in fields.data and not fields.has(key) else fields.number(key, 1e-3, 1e6, default)

    return {
        "windows": windows(fields, config.layers, default=4096, pattern=2),
        "attention_scale": fields.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0) ** -0.5,
        "attention_softcap": cap("attn_logit_softcapping", 50.0),
        "logit_softcap": cap("final_logit_softcapping", 30.0),
        "embedding_scale": config.hidden**0.5,
    }


def weights(config: ModelConfig) -> Layout:
    """Return the tensors of a Gemma 2 of this shape."""
    return decoder(config, norms=BOTH_NORMS)
