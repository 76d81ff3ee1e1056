"""Ministral 3: Mistral with yarn, whose queries are scaled by their position (``llama_4_scaling_beta``).

``models/ministral3/modeling_ministral3.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.shared_keys import windows

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig

WRAPPERS = ("Mistral3ForConditionalGeneration",)
DEFAULTS = {"head_dim": 128}
SCALES_Q = True


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the window; refuse a file without the rope parameters, which define the family."""
    if not (fields.has("rope_parameters") or fields.has("rope_scaling")):
        fields.fail("rope_parameters", "is missing, which Ministral 3 cannot do without")
    return {"windows": windows(fields, config.layers)}
