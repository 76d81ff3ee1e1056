"""Rotary position frequencies as a model's ``rope_scaling`` asks for them, in double and rounded to f32 once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.errors import ModelError

if TYPE_CHECKING:
    from infeng_core.models.config import RopeConfig


def tables(rope: RopeConfig, rot: int, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return (cos, sin), each (positions, rot / 2) float32, the same bytes on every machine."""
    return _native.rope_tables(inverse_frequencies(rope, rot), positions)


def inverse_frequencies(rope: RopeConfig, rot: int) -> NDArray[np.float32]:
    """Return the (rot / 2) angular steps per position, float32.

    ``linear`` divides every frequency by the factor. ``llama3`` (Llama 3.1, ``_compute_llama3_parameters`` of
    transformers) leaves short wavelengths alone, divides long ones and blends in between.
    """
    frequency = _native.rope_inv_freq(rot, rope.theta)
    if rope.kind == "linear":
        frequency = frequency / rope.factor
    elif rope.kind == "llama3":
        original = rope.original_max_positions
        wavelength = 2.0 * math.pi / frequency
        smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        blended = (1.0 - smooth) * frequency / rope.factor + smooth * frequency
        is_long = wavelength > original / rope.low_freq_factor
        is_short = wavelength < original / rope.high_freq_factor
        frequency = np.where(is_long, frequency / rope.factor, np.where(is_short, frequency, blended))
    elif rope.kind != "default":
        raise ModelError("config.json", f"unknown rope scaling {rope.kind!r}", "known are default, linear and llama3")
    return frequency.astype(np.float32)
