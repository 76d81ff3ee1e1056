"""The parameters of rotary position embedding, from the places where config.json may hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from infeng_core.api.formats import Fields, RopeConfig, model_bounds, rope_kind, rope_parameters, show

OTHER_NAMES = {"su": "longrope"}  # of early files

# All keys that a place with the parameters may have. Each changes results, so any other key is refused; keys of another
# kind are ignored, as in transformers.
KNOWN = frozenset(
    [
        "rope_type",
        "type",
        "rope_theta",
        "factor",
        "partial_rotary_factor",
        "original_max_position_embeddings",
        "low_freq_factor",
        "high_freq_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "attention_factor",
        "truncate",
        "short_factor",
        "long_factor",
        "max_position_embeddings",
        "finetuned",
    ]
)
QUERY_BETA = "llama_4_scaling_beta"  # of families that scale q


def read_rope(
    fields: Fields,
    positions: int,
    theta: float = 10000.0,
    layer_type: str = "",
    *,
    plain: bool = False,
    names: Mapping[str, str] = MappingProxyType({}),
    scales_q: bool = False,
    missing: Mapping[str, Any] = MappingProxyType({}),
) -> RopeConfig:
    """Read ``rope_parameters`` (transformers 5), or ``rope_theta`` and ``rope_scaling`` (earlier versions).

    Raises ModelError for a file that has both if they describe different models.

    positions: ``max_position_embeddings``. theta: the default. layer_type: the kind of layer, if the file has
    parameters for each kind; otherwise ``plain`` means no scaling and ``theta``. names: the family's other names
    for kinds. scales_q: the family scales q by its position. missing: the parameters of a file that has none.
    """
    if missing and not fields.has("rope_parameters") and not _places(fields):
        with_them = Fields({**fields.data, "rope_scaling": missing}, fields.source, remedy=fields.remedy)
        with_them.asked = fields.asked
        fields = with_them
    made = [
        _from_place(fields, place, positions, theta, layer_type, plain, names, scales_q)
        for place in _places(fields) or ("",)
    ]
    if made[1:] and made[0] != made[1]:
        why = "says otherwise than rope_parameters, beside which it stands"
        fields.fail("rope_scaling", why, "keep rope_parameters alone, with all that counts in it, rope_theta too")
    return made[0]


def require_kinds(fields: Fields) -> None:
    """Raise ModelError if ``rope_parameters`` cover all layers in a family with parameters for each kind of layer."""
    if not fields.has("rope_parameters"):
        return
    inner = fields.mapping("rope_parameters")
    if inner.data and not any(isinstance(value, Mapping) for value in inner.data.values()):
        remedy = "put them under full_attention, and those of layers with a window under sliding_attention"
        fields.fail("rope_parameters", "are for all layers, where this family has some for each kind", remedy)


def _places(fields: Fields) -> tuple[str, ...]:
    """Return the keys under which a file has rope parameters."""
    return tuple(name for name in ("rope_parameters", "rope_scaling") if fields.has(name) and fields.data[name] != {})


def _from_place(
    fields: Fields,
    place: str,
    positions: int,
    theta: float,
    layer_type: str,
    plain: bool,
    names: Mapping[str, str],
    scales_q: bool,
) -> RopeConfig:
    """Return the parameters of one place; "" stands for no place."""
    theta = theta if plain else fields.number("rope_theta", *model_bounds.ROPE_THETA, theta)
    partial = fields.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    original = fields.optional_integer("original_max_position_embeddings", 1, 1 << 28) or 0
    if not place:
        return RopeConfig(theta, partial=partial)
    scaling = fields.mapping(place)
    if layer_type and scaling.has(layer_type):
        scaling = scaling.mapping(layer_type)
    elif plain or any(isinstance(value, Mapping) for value in scaling.data.values()):
        return RopeConfig(theta, partial=partial)
    for key in scaling.data:
        if key not in KNOWN and not (scales_q and key == QUERY_BETA):
            scaling.fail(show(key), "is not known to this version", "update infeng or use another model")
    made = _read(scaling, positions, theta, partial, original, names)
    if not (scales_q and scaling.has(QUERY_BETA)):
        return made
    length = made.original_max_positions or scaling.integer("original_max_position_embeddings", 1, 1 << 28)
    return replace(made, query_beta=scaling.number(QUERY_BETA, 0.0, 1e6), original_max_positions=length)


def _read(
    fields: Fields, positions: int, theta: float, partial: float, original: int, names: Mapping[str, str]
) -> RopeConfig:
    kind = fields.text("rope_type", fields.text("type", "default"))
    kind = rope_kind(fields, "rope_type", {**OTHER_NAMES, **names}.get(kind, kind))
    theta = fields.number("rope_theta", *model_bounds.ROPE_THETA, theta)
    partial = fields.number("partial_rotary_factor", 0.0, 1.0, partial)
    if kind == "default":
        return RopeConfig(theta, partial=partial)
    more = rope_parameters(fields, kind, "original_max_position_embeddings", "short_factor", "long_factor", positions)
    if original and kind in ("yarn", "longrope"):
        more["original_max_positions"] = original
    stretch = positions / more["original_max_positions"] if more.get("original_max_positions") else None
    factor = fields.number(
        "factor", *model_bounds.ROPE_FACTOR, max(stretch, 1.0) if stretch and kind in ("yarn", "longrope") else None
    )
    if kind == "dynamic":
        more["original_max_positions"] = positions  # transformers uses this value, whatever the file says
    more["attention_factor"] = _attention_factor(fields, kind, factor, more.get("original_max_positions", 0))
    return RopeConfig(theta, kind, factor, partial=partial, **more)


def _attention_factor(fields: Fields, kind: str, factor: float, original: int) -> float:
    """Return the factor of cos and sin (``modeling_rope_utils.py`` of transformers)."""
    if kind not in ("yarn", "longrope"):
        return 1.0
    if fields.has("attention_factor"):
        return fields.number("attention_factor", 1e-6, 1e6)
    if factor <= 1.0:
        return 1.0
    if kind == "longrope":
        return math.sqrt(1.0 + math.log(factor) / math.log(max(original, 2)))
    scale, of_all = (fields.number(key, 0.0, 1e6, 0.0) for key in ("mscale", "mscale_all_dim"))
    if scale and of_all:
        return (0.1 * scale * math.log(factor) + 1.0) / (0.1 * of_all * math.log(factor) + 1.0)
    return 0.1 * math.log(factor) + 1.0
