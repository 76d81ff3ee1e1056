"""OLMo 3: OLMo 2 with a window in three layers of four, which keep the plain rotary embedding.

``models/olmo3/modeling_olmo3.py`` of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_convert.configs.rope import read_rope, require_kinds
from infeng_convert.configs.shared_keys import windows

if TYPE_CHECKING:
    from infeng_core.api.formats import Fields, ModelConfig

DEFAULTS = {"rope_theta": 500000.0, "sliding_window": 4096}


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Read the windows, and the rope of layers with one: the parameters of ``sliding_attention``, else the plain
    theta."""
    require_kinds(fields)
    theta = fields.number("rope_theta", 1e-3, 1e15)
    local = read_rope(fields, config.max_positions, theta, "sliding_attention", plain=True)
    return {
        "windows": windows(fields, config.layers, pattern=4),
        "local_rope": None if local == config.rope else local,
    }
