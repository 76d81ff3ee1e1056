"""The rotary frequencies of a model's rope parameters, computed in double and rounded to f32 once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.errors import ModelError

if TYPE_CHECKING:
    from infeng_core.models.config import RopeConfig

Table = NDArray[np.float32]


def tables(rope: RopeConfig, head_dim: int, positions: int) -> tuple[Table, Table]:
    """Return (cos, sin), each (positions, rot / 2) float32, the same bytes on every machine.

    positions: the most positions of a sequence; two kinds of rope depend on it (``variant``).
    """
    frequencies = inverse_frequencies(rope, rope.rotated(head_dim), positions)
    cos, sin = _native.rope_tables(frequencies, positions)
    if rope.attention_factor != 1.0:
        factor = np.float32(rope.attention_factor)
        return cos * factor, sin * factor
    return cos, sin


def query_scale(rope: RopeConfig, positions: int) -> Table | None:
    """Return the factor of q at each position, (positions,) float32; None if q is not scaled."""
    if not rope.query_beta:
        return None
    turn = np.floor(np.arange(positions) / rope.original_max_positions)
    return (1.0 + rope.query_beta * np.log1p(turn)).astype(np.float32)


def variant(rope: RopeConfig, positions: int) -> str:
    """Return a description of the rope table for this many positions, or "" if one table serves all lengths.

    transformers chooses a table by the length of each sequence, so its cached keys and later queries may be turned by
    different tables. Here all sequences of an engine use the table of its context, so that cached keys stay valid.
    """
    if rope.kind == "longrope":
        return "long rope" if positions > rope.original_max_positions else "short rope"
    if rope.kind == "dynamic" and positions > rope.original_max_positions:
        return f"rope of {positions} positions"
    return ""


def inverse_frequencies(rope: RopeConfig, rot: int, positions: int = 0) -> NDArray[np.float32]:
    """Return the (rot / 2) angular steps per position, float32, as ``modeling_rope_utils.py`` of transformers has
    them.

    ``linear`` divides every frequency by the factor. ``dynamic`` enlarges theta until ``positions`` fit. ``llama3``
    keeps short wavelengths, divides long ones and blends in between. ``yarn`` (Peng et al., 2023) blends likewise, by
    the frequency's index. ``longrope`` (Ding et al., 2024) divides each frequency by a number of its own.
    """
    theta = rope.theta
    if rope.kind == "dynamic" and positions > rope.original_max_positions:
        stretch = rope.factor * positions / rope.original_max_positions - (rope.factor - 1.0)
        theta = theta * stretch ** (rot / (rot - 2.0))
    frequency = _native.rope_inv_freq(rot, theta)
    match rope.kind:
        case "default" | "dynamic":
            pass
        case "linear":
            frequency = frequency / rope.factor
        case "llama3":
            frequency = _llama3(rope, frequency)
        case "yarn":
            kept = 1.0 - _yarn_ramp(rope, rot)
            frequency = frequency / rope.factor * (1.0 - kept) + frequency * kept
        case "longrope":
            is_long = positions > rope.original_max_positions
            frequency = frequency / np.array(rope.long_factors if is_long else rope.short_factors)
        case _:
            raise ModelError("config.json", f"unknown rope scaling {rope.kind!r}", "update infeng")
    return frequency.astype(np.float32)


def _llama3(rope: RopeConfig, frequency: NDArray[np.float64]) -> NDArray[np.float64]:
    original = rope.original_max_positions
    wavelength = 2.0 * math.pi / frequency
    smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1.0 - smooth) * frequency / rope.factor + smooth * frequency
    is_long = wavelength > original / rope.low_freq_factor
    is_short = wavelength < original / rope.high_freq_factor
    return np.where(is_long, frequency / rope.factor, np.where(is_short, frequency, blended))


def _yarn_ramp(rope: RopeConfig, rot: int) -> NDArray[np.float64]:
    """Return the share of each frequency that is slowed, (rot / 2,) from 0 to 1."""

    def index(turns: float) -> float:
        return rot * math.log(rope.original_max_positions / (turns * 2.0 * math.pi)) / (2.0 * math.log(rope.theta))

    low, high = index(rope.beta_fast), index(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rot - 1)
    if low == high:
        high += 0.001
    return np.clip((np.arange(rot // 2) - low) / (high - low), 0.0, 1.0)
