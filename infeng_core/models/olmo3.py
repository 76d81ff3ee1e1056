"""OLMo 3: OLMo 2 with a window in three layers of four, which keep to plain rotary embedding.

``models/olmo3/modeling_olmo3.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.models.config_keys import windows
from infeng_core.models.decoder import graph
from infeng_core.models.olmo2 import weights
from infeng_core.models.rope_config import RopeConfig, require_kinds

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig
    from infeng_core.models.typed_fields import Fields

__all__ = ["ARCHITECTURES", "DEFAULTS", "FAMILY", "graph", "terms", "weights"]

FAMILY = "olmo3"
ARCHITECTURES = ("Olmo3ForCausalLM",)
DEFAULTS = {"rope_theta": 500000.0, "sliding_window": 4096}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the windows and the rope of layers with one: that of ``sliding_attention``, else the plain theta."""
    require_kinds(fields)
    theta = fields.number("rope_theta", 1e-3, 1e15)
    local = RopeConfig.from_hf(fields, config.max_positions, theta, "sliding_attention", plain=True)
    return {
        "windows": windows(fields, config.layers, pattern=4),
        "local_rope": None if local == config.rope else local,
    }
