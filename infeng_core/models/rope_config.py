"""The parameters of rotary position embedding, from the places where config.json may hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from infeng_core.models.typed_fields import Fields, show

KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
OTHER_NAMES = {"su": "longrope"}  # of early files

# Everything that a place with the parameters may say. All of it changes results, so nothing else is let through; what
# belongs to another kind is ignored, as transformers does.
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

FACTOR = (1.0, 1e6)
THETA = (1e-3, 1e15)


@dataclass(frozen=True)
class RopeConfig:
    """How angles grow with the position. inv_freq[i] = theta^(-2i/rot), then scaled by ``kind``.

    ``rot`` is the part ``partial`` of a head, from its beginning; ``models.rope`` has the formula of each kind.
    ``attention_factor`` multiplies cos and sin. ``query_beta`` above 0 scales q by its position (Llama 4, Ministral 3):
    1 + query_beta * ln(1 + floor(position / original_max_positions)).
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    partial: float = 1.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()  # (rot / 2,)
    long_factors: tuple[float, ...] = ()  # (rot / 2,)
    query_beta: float = 0.0

    def rotated(self, head_dim: int) -> int:
        """Return how many values of a head are rotated."""
        return int(head_dim * self.partial)

    @staticmethod
    def from_hf(
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
        """Read ``rope_parameters`` (transformers 5), or ``rope_theta`` and ``rope_scaling`` (before it).

        Raises ModelError for a file that has both and that would be another model by each.

        positions: ``max_position_embeddings``. theta: where the file says none. layer_type: whose parameters, where
        the file has some for each kind of layer; ``plain``: where it has not, there is no scaling and ``theta`` counts.
        names: what kinds mean that the family calls otherwise. scales_q: the family scales q by its position.
        missing: the parameters of a file that has none.
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

    @staticmethod
    def from_dict(fields: Fields) -> RopeConfig:
        """Read what ``fields.written`` gave."""
        fields.only(*RopeConfig.__dataclass_fields__)
        kind = _kind(fields, "kind", fields.text("kind"))
        more = _of_kind(fields, kind, "original_max_positions", "short_factors", "long_factors")
        beta = fields.number("query_beta", 0.0, 1e6, 0.0)
        if beta:
            more["original_max_positions"] = fields.integer("original_max_positions", 1, 1 << 28)
        return RopeConfig(
            theta=fields.number("theta", *THETA),
            kind=kind,
            factor=fields.number("factor", *FACTOR),
            partial=fields.number("partial", 0.0, 1.0, 1.0),
            attention_factor=fields.number("attention_factor", 1e-6, 1e6, 1.0),
            query_beta=beta,
            **more,
        )


def require_kinds(fields: Fields) -> None:
    """Raise ModelError where ``rope_parameters`` are for all layers, in a family that has some for each kind."""
    if not fields.has("rope_parameters"):
        return
    inner = fields.mapping("rope_parameters")
    if inner.data and not any(isinstance(value, Mapping) for value in inner.data.values()):
        remedy = "put them under full_attention, and those of layers with a window under sliding_attention"
        fields.fail("rope_parameters", "are for all layers, where this family has some for each kind", remedy)


def _places(fields: Fields) -> tuple[str, ...]:
    """Return where a file has parameters."""
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
    """Return what the parameters of one place say, "" for none."""
    theta = theta if plain else fields.number("rope_theta", *THETA, theta)
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
    kind = _kind(fields, "rope_type", {**OTHER_NAMES, **names}.get(kind, kind))
    theta = fields.number("rope_theta", *THETA, theta)
    partial = fields.number("partial_rotary_factor", 0.0, 1.0, partial)
    if kind == "default":
        return RopeConfig(theta, partial=partial)
    more = _of_kind(fields, kind, "original_max_position_embeddings", "short_factor", "long_factor", positions)
    if original and kind in ("yarn", "longrope"):
        more["original_max_positions"] = original
    stretch = positions / more["original_max_positions"] if more.get("original_max_positions") else None
    factor = fields.number("factor", *FACTOR, max(stretch, 1.0) if stretch and kind in ("yarn", "longrope") else None)
    if kind == "dynamic":
        more["original_max_positions"] = positions  # transformers counts from there, whatever the file says
    more["attention_factor"] = _attention_factor(fields, kind, factor, more.get("original_max_positions", 0))
    return RopeConfig(theta, kind, factor, partial=partial, **more)


def _of_kind(
    fields: Fields, kind: str, original: str, short: str, long: str, positions: int | None = None
) -> dict[str, Any]:
    """Return the parameters that one kind alone has; the names are those of the place that is read."""
    if kind == "llama3":
        low = fields.number("low_freq_factor", 1e-3, 1e6)
        high = fields.number("high_freq_factor", 1e-3, 1e6)
        if high <= low:
            fields.fail("high_freq_factor", f"is {high:g}, it must be above low_freq_factor = {low:g}")
        return {
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_positions": fields.integer(original, 1, 1 << 28),
        }
    found: dict[str, Any] = {}
    if kind != "linear" and kind != "default":
        found["original_max_positions"] = fields.integer(original, 1, 1 << 28, positions)
    if kind == "yarn":
        found["beta_fast"] = fields.number("beta_fast", 1e-3, 1e6, 32.0)
        found["beta_slow"] = fields.number("beta_slow", 1e-3, 1e6, 1.0)
        found["truncate"] = fields.flag("truncate", True)
    if kind == "longrope":
        found["short_factors"] = fields.numbers(short, 1e-3, 1e6)
        found["long_factors"] = fields.numbers(long, 1e-3, 1e6)
    return found


def _attention_factor(fields: Fields, kind: str, factor: float, original: int) -> float:
    """Return what cos and sin are multiplied by (``modeling_rope_utils.py`` of transformers)."""
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


def _kind(fields: Fields, key: str, kind: str) -> str:
    if kind not in KINDS:
        fields.fail(key, f"is {show(kind)}, supported are {', '.join(KINDS)}", "use another model")
    return kind
