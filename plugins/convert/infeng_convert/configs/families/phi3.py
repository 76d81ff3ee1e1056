"""Phi-3, Phi-3.5 and Phi-4-mini: Llama's blocks with q, k, v and gate, up fused, longrope, heads rotated in part.

Phi-3 technical report (Abdin et al., 2024); ``models/phi3/modeling_phi3.py`` of transformers. Early files name longrope
"su" or "yarn".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.shared_keys import windows

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig

DEFAULTS = {"original_max_position_embeddings": 4096}
ROPE_NAMES = {"yarn": "longrope"}
ROTATES_PART = True


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the window, which all layers have."""
    return {"windows": windows(fields, config.layers)}
