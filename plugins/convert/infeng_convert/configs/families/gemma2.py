"""Gemma 2: norms before and after blocks by 1 + w, gated GELU, a window in every other layer, soft caps.

Gemma 2 (Gemma team, 2024); ``models/gemma2/modeling_gemma2.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.shared_keys import windows

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig

DEFAULTS = {
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read windows, caps and scales; the embeddings are scaled by the root of their width."""
    return {
        "windows": windows(fields, config.layers, pattern=2),
        "attention_scale": fields.number("query_pre_attn_scalar", 1e-3, 1e6) ** -0.5,
        "attention_softcap": cap(fields, "attn_logit_softcapping"),
        "logit_softcap": cap(fields, "final_logit_softcapping"),
        "embedding_scale": config.hidden**0.5,
    }


def cap(fields: Fields, key: str) -> float:
    """Return a soft cap; 0 where there is none."""
    return fields.number(key, 1e-3, 1e6) if fields.has(key) else 0.0
