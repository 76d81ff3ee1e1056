"""Gemma 3 (text): Gemma 2 with norms over each head of q and k in place of the cap of scores, and two thetas.

Gemma 3 (Gemma team, 2025); ``models/gemma3/modeling_gemma3.py`` of transformers. Five layers of six have a window and a
theta of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.families.gemma2 import cap
from infeng_convert.configs.rope import read_rope, require_kinds
from infeng_convert.configs.shared_keys import windows

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig

WRAPPERS = ("Gemma3ForConditionalGeneration",)  # their files leave out many keys
DEFAULTS = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rope_local_base_freq": 10000.0,
    "rope_theta": 1000000.0,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
    "vocab_size": 262208,
}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read windows, the rope of layers with a window, and scales; the embeddings are scaled by the root of their
    width."""
    require_kinds(fields)
    theta = fields.number("rope_local_base_freq", 1e-3, 1e15)
    pattern = fields.integer("sliding_window_pattern", 1, 1 << 20)
    return {
        "windows": windows(fields, config.layers, pattern=pattern),
        "local_rope": read_rope(fields, config.max_positions, theta, "sliding_attention", plain=True),
        "attention_scale": fields.number("query_pre_attn_scalar", 1e-3, 1e6) ** -0.5,
        "logit_softcap": cap(fields, "final_logit_softcapping"),
        "embedding_scale": config.hidden**0.5,
    }
