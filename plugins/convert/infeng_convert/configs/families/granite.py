"""Granite 3 (dense): Llama's blocks, with constant factors on embeddings, scores, residuals and logits.

``models/granite/modeling_granite.py`` of transformers; the factors come from muP (Yang et al., 2022).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the factors; logits are divided by theirs."""
    return {
        "embedding_scale": fields.number("embedding_multiplier", 1e-6, 1e6, 1.0),
        "residual_scale": fields.number("residual_multiplier", 1e-6, 1e6, 1.0),
        "attention_scale": fields.number("attention_multiplier", 1e-6, 1e6, 1.0),
        "logit_scale": 1.0 / fields.number("logits_scaling", 1e-6, 1e6, 1.0),
    }
