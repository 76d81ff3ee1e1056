"""SmolLM3: Llama's blocks; every fourth does not rotate q and k.

SmolLM3 (Hugging Face, 2025); ``models/smollm3/modeling_smollm3.py`` of transformers. ``no_rope_layers`` has a 1 for
each layer that *has* rotary embedding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.shared_keys import switched_windows
from infeng_core.api.formats import show

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig

DEFAULTS = {"rope_theta": 2000000.0, "tie_word_embeddings": True}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the layers that rotate, and the windows that layers without rotation may have."""
    every = fields.integer("no_rope_layer_interval", 1, 1 << 20, 4)
    rotates = [int((layer + 1) % every != 0) for layer in range(config.layers)]
    if fields.has("no_rope_layers"):
        rotates = fields.data["no_rope_layers"]
        if not isinstance(rotates, list) or len(rotates) != config.layers or not set(rotates) <= {0, 1}:
            fields.fail("no_rope_layers", f"is {show(rotates)}, it must be a list of {config.layers} zeros and ones")
    found = switched_windows(fields, config.layers)
    if not fields.has("layer_types"):
        found = tuple(0 if rotate else size for rotate, size in zip(rotates, found, strict=False))
    unrotated = tuple(layer for layer, rotate in enumerate(rotates) if not rotate)
    return {"unrotated": unrotated, "windows": found if any(found) else ()}
