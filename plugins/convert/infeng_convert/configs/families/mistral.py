"""Mistral: Llama's blocks; early models have an attention window.

Mistral 7B (Jiang et al., 2023); ``models/mistral/modeling_mistral.py`` of transformers. ``sliding_window`` is null in
files of models without one; a file without the key has a window of 4096.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.shared_keys import windows

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig

WRAPPERS = ("Mistral3ForConditionalGeneration",)
DEFAULTS = {"sliding_window": 4096}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the window, which all layers have."""
    return {"windows": windows(fields, config.layers)}
