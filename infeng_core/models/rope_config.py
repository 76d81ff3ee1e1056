"""The parameters of rotary position embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infeng_core.models.bounds import ROPE_FACTOR, ROPE_THETA
from infeng_core.models.typed_fields import Fields, show

KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


@dataclass(frozen=True)
class RopeConfig:
    """The growth of angles with the position: inv_freq[i] = theta^(-2i/rot), then scaled by ``kind``.

    ``rot`` is the part ``partial`` of a head, from its beginning; ``models.rope`` has the formula of each kind.
    ``attention_factor`` multiplies cos and sin. ``query_beta`` above 0 scales q by its position (Llama 4, Ministral
    3): 1 + query_beta * ln(1 + floor(position / original_max_positions)).
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
    def from_dict(fields: Fields) -> RopeConfig:
        """Read the result of ``fields.written``."""
        fields.only(*RopeConfig.__dataclass_fields__)
        kind = rope_kind(fields, "kind", fields.text("kind"))
        more = rope_parameters(fields, kind, "original_max_positions", "short_factors", "long_factors")
        beta = fields.number("query_beta", 0.0, 1e6, 0.0)
        if beta:
            more["original_max_positions"] = fields.integer("original_max_positions", 1, 1 << 28)
        return RopeConfig(
            theta=fields.number("theta", *ROPE_THETA),
            kind=kind,
            factor=fields.number("factor", *ROPE_FACTOR),
            partial=fields.number("partial", 0.0, 1.0, 1.0),
            attention_factor=fields.number("attention_factor", 1e-6, 1e6, 1.0),
            query_beta=beta,
            **more,
        )


def rope_parameters(
    fields: Fields, kind: str, original: str, short: str, long: str, positions: int | None = None
) -> dict[str, Any]:
    """Return the parameters that only one kind has; the other arguments name its keys in this place."""
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


def rope_kind(fields: Fields, key: str, kind: str) -> str:
    """Return a kind that the engine runs; raises ModelError for another."""
    if kind not in KINDS:
        fields.fail(key, f"is {show(kind)}, supported are {', '.join(KINDS)}", "use another model")
    return kind
