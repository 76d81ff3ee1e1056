"""Integers that others chose, in this engine's formats: which format is nearest, and what fp16 scales can hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import QuantFormat, UsageError

RULES = 3
"""Counts changes of what a stored type becomes where nothing is asked for: conversions of before are made again."""

LEAST = np.float32(2.0**-24)
"""The least scale above zero of fp16."""

NEAREST = "int8-g32"
"""For what is in no format exactly: a scale for as few inputs as theirs, and 8 bits, which lose little of any.

And for floats beside quantized tensors: whoever left them so wanted no less of them.
"""

MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""The values of MXFP4 by code, doubled (OCP, Microscaling, 2023)."""


def halved(codes: NDArray[np.int8], scales: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]] | None:
    """Return codes, (blocks, n), and scales, (blocks,), as fp16 can hold them; None where a scale is too large.

    MXFP4's scales are powers of two down to 2^-128. A block under a smaller one than fp16's least, 2^-24, is rounded to
    multiples of that: by 2^-25 at most. What is not finite is None as well: it is named where values are packed.
    """
    with np.errstate(over="ignore"):
        stored = scales.astype(np.float16).astype(np.float32)
    if not np.isfinite(stored).all():
        return None
    tiny = (stored != scales) & (np.abs(scales) < LEAST)
    if not np.array_equal(stored[~tiny], scales[~tiny]):
        return None
    if tiny.any():
        codes, scales = codes.copy(), scales.copy()
        codes[tiny] = np.rint(codes[tiny] * (scales[tiny] / LEAST)[:, None])
        scales[tiny] = LEAST
    return codes, scales


def require_unturned(name: str, format: QuantFormat) -> None:
    """Raise UsageError for a rotated format of a tensor that is stored as integers, which stay what they are."""
    if format.is_rotated:
        why = f"{name} is quantized already: its integers cannot be rotated"
        raise UsageError(f"weight format {format.name}", why, "convert the original model, or leave --rotate out")
