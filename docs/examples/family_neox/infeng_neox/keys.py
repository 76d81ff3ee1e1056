"""The keys of config.json that a Llama does not have, or has under another name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from infeng_core.api.formats import PANEL_ROWS, Fields, ModelConfig, RopeConfig, model_bounds

DEFAULTS = {"attention_bias": True, "hidden_act": "gelu", "layer_norm_eps": 1e-5}
ROPE_PLACES = ("rope_parameters", "rope_scaling")


def terms(fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """Return the fields of ModelConfig that this family reads by itself; raises ModelError."""
    if config.kv_heads != config.heads or config.heads * config.head_dim != config.hidden:
        fields.fail("num_attention_heads", f"is {config.heads}, and each head has its q, k and v in this family")
    if config.head_dim % PANEL_ROWS:
        why = f"is {config.heads}, which makes heads of {config.head_dim}: only multiples of {PANEL_ROWS} are run"
        fields.fail("num_attention_heads", why, "use another model")
    return {
        "rms_eps": fields.number("layer_norm_eps", 1e-12, 1.0),
        "mlp_bias": True,
        "rope": rope(fields, config.rope),
    }


def rope(fields: Fields, read: RopeConfig) -> RopeConfig:
    """Return the rotary embedding, ``read`` under today's names, with this family's own names and default part."""
    theta = _under_both_names(fields, "rope_theta", read.theta, "rotary_emb_base", model_bounds.ROPE_THETA, 10000.0)
    part = _under_both_names(fields, "partial_rotary_factor", read.partial, "rotary_pct", (0.0, 1.0), 0.25)
    return replace(read, theta=theta, partial=part)


def _under_both_names(
    fields: Fields, key: str, read: float, own: str, bounds: tuple[float, float], default: float
) -> float:
    """Return the value of ``key``, which is ``read``, or of ``own``; raises ModelError where they differ."""
    places = [fields.mapping(place) for place in ROPE_PLACES if fields.has(place)]
    is_said = any(place.has(key) for place in (fields, *places))
    if not fields.has(own):
        return read if is_said else default
    value = fields.number(own, *bounds)
    if is_said and value != read:
        fields.fail(own, f"is {value:g}, and {key} is {read:g}: they mean the same", "correct the file")
    return value
