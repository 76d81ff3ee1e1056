"""Ministral 3: Mistral with yarn, whose queries are scaled by their position (``llama_4_scaling_beta``).

``models/ministral3/modeling_ministral3.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.models.config_keys import windows
from infeng_core.models.decoder import graph
from infeng_core.models.mistral import weights

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig
    from infeng_core.models.typed_fields import Fields

__all__ = ["ARCHITECTURES", "DEFAULTS", "FAMILY", "SCALES_Q", "WRAPPERS", "graph", "terms", "weights"]

FAMILY = "ministral3"
ARCHITECTURES = ("Ministral3ForCausalLM",)
WRAPPERS = ("Mistral3ForConditionalGeneration",)
DEFAULTS = {"head_dim": 128}
SCALES_Q = True


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the window; a file without the rope parameters that the family is made of is refused."""
    if not (fields.has("rope_parameters") or fields.has("rope_scaling")):
        fields.fail("rope_parameters", "is missing, which Ministral 3 cannot do without")
    return {"windows": windows(fields, config.layers)}
