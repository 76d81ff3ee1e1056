"""Qwen3: Llama's blocks, with a norm over each head of q and k before it is rotated.

Qwen3 technical report (Yang et al., 2025); ``models/qwen3/modeling_qwen3.py`` of transformers.
"""

from infeng_convert.configs.families import qwen2
from infeng_convert.configs.families.qwen2 import terms

__all__ = ["DEFAULTS", "STATES", "TEXT_TYPES", "WRAPPERS", "terms"]

DEFAULTS = {**qwen2.DEFAULTS, "head_dim": 128}
WRAPPERS = ("Qwen3VLForConditionalGeneration",)
TEXT_TYPES = {"qwen3_vl_text": {"rope_theta": 500000.0}}
STATES = {"use_qk_norm": (True,)}
