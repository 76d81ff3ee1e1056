"""The parameters of rotary position embedding, from the three places where config.json may hold them."""

from __future__ import annotations

from dataclasses import dataclass

from infeng_core.models.fields import Fields, show

KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True)
class RopeConfig:
    """How angles grow with the position. inv_freq[i] = theta^(-2i/head_dim), then scaled by ``kind``.

    ``linear`` divides every inv_freq by ``factor``. ``llama3`` divides those whose wavelength exceeds
    original_max_positions / low_freq_factor, keeps those below original_max_positions / high_freq_factor and blends
    between (Meta, Llama 3.1 reference code). ``default`` uses theta alone.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0

    @staticmethod
    def from_hf(fields: Fields) -> RopeConfig:
        """Read ``rope_parameters`` (transformers 5), or ``rope_theta`` and ``rope_scaling`` (before it)."""
        default_theta = fields.number("rope_theta", 1e-3, 1e15, 10000.0)
        place = next((name for name in ("rope_parameters", "rope_scaling") if fields.has(name)), None)
        if place is None:
            return RopeConfig(theta=default_theta)
        scaling = fields.mapping(place)
        kind = scaling.text("rope_type", scaling.text("type", "default"))
        if kind not in KINDS:
            scaling.fail("rope_type", f"is {show(kind)}, supported are {', '.join(KINDS)}", "use another model")
        if scaling.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0:
            scaling.fail("partial_rotary_factor", "is not 1, only whole heads can be rotated", "use another model")
        theta = scaling.number("rope_theta", 1e-3, 1e15, default_theta)
        if kind == "default":
            return RopeConfig(theta=theta)
        factor = scaling.number("factor", 1.0, 1e6)
        if kind == "linear":
            return RopeConfig(theta=theta, kind=kind, factor=factor)
        return _llama3(scaling, theta, factor, "original_max_position_embeddings")

    @staticmethod
    def from_dict(fields: Fields) -> RopeConfig:
        """Read what ``dataclasses.asdict`` gave."""
        fields.only("theta", "kind", "factor", "low_freq_factor", "high_freq_factor", "original_max_positions")
        kind = fields.text("kind")
        if kind not in KINDS:
            fields.fail("kind", f"is {show(kind)}, supported are {', '.join(KINDS)}")
        theta = fields.number("theta", 1e-3, 1e15)
        factor = fields.number("factor", 1.0, 1e6)
        if kind == "llama3":
            return _llama3(fields, theta, factor, "original_max_positions")
        return RopeConfig(theta=theta, kind=kind, factor=factor)


def _llama3(fields: Fields, theta: float, factor: float, positions: str) -> RopeConfig:
    low = fields.number("low_freq_factor", 1e-3, 1e6)
    high = fields.number("high_freq_factor", 1e-3, 1e6)
    if high <= low:
        fields.fail("high_freq_factor", f"is {high:g}, it must be above low_freq_factor = {low:g}")
    original = fields.integer(positions, 1, 1 << 28)
    return RopeConfig(theta, "llama3", factor, low, high, original)
