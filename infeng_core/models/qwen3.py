"""Qwen3: Llama's blocks, with a norm over each head of q and k before it is rotated.

Qwen3 technical report (Yang et al., 2025); ``models/qwen3/modeling_qwen3.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.models import qwen2
from infeng_core.models.decoder import graph
from infeng_core.models.qwen2 import terms
from infeng_core.models.weights import Layout, decoder

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig

__all__ = [
    "ARCHITECTURES",
    "DEFAULTS",
    "FAMILY",
    "STATES",
    "TEXT_TYPES",
    "WRAPPERS",
    "graph",
    "terms",
    "weights",
]

FAMILY = "qwen3"
ARCHITECTURES = ("Qwen3ForCausalLM",)
DEFAULTS = {**qwen2.DEFAULTS, "head_dim": 128}
WRAPPERS = ("Qwen3VLForConditionalGeneration",)
TEXT_TYPES = {"qwen3_vl_text": {"rope_theta": 500000.0}}
STATES = {"use_qk_norm": (True,)}


def weights(config: ModelConfig) -> Layout:
    """Return the tensors of a Qwen3 of this shape."""
    return decoder(config, qk_norm="head")
