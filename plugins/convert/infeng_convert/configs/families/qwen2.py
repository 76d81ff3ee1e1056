"""Qwen2 and Qwen2.5: Llama's blocks, with biases on q, k and v and none elsewhere.

Qwen2 technical report (Yang et al., 2024); ``models/qwen2/modeling_qwen2.py`` of transformers, where the biases are
part of the architecture and no field of config.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.shared_keys import switched_windows

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig

DEFAULTS = {"sliding_window": 4096, "max_window_layers": 28}
STATES = {"qkv_bias": (True,)}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the windows: ``use_sliding_window`` enables them, ``layer_types`` or ``max_window_layers`` selects the
    layers."""
    first = fields.integer("max_window_layers", 0, 1 << 20)
    found = switched_windows(fields, config.layers)
    if not fields.has("layer_types"):
        found = tuple(size if layer >= first else 0 for layer, size in enumerate(found))
    return {"windows": found if any(found) else ()}
