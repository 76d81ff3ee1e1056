"""Quantized integers of a checkpoint in this engine's formats: the nearest format, and the limits of fp16 scales."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import UsageError
from infeng_core.api.formats import QuantFormat

RULES = 3
"""Raised when a stored type gets another default format: earlier conversions are then repeated."""

LEAST = np.float32(2.0**-24)
"""The smallest positive fp16 scale."""

NEAREST = "int8-g32"
"""Default for types that no format holds exactly: a scale for as few inputs as theirs, and 8 bits, which lose little
of any. It is also the default for floats beside quantized tensors, which were left unquantized for their precision.
"""

MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Doubled values of the MXFP4 codes (OCP, Microscaling, 2023)."""


def halved(codes: NDArray[np.int8], scales: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]] | None:
    """Return codes, (blocks, n), and scales, (blocks,), as fp16 can hold them; None if a scale is too large.

    MXFP4's scales are powers of two down to 2^-128. A block with a scale below fp16's least, 2^-24, is rounded to
    multiples of that: by 2^-25 at most. Scales that are not finite also give None; packing the values then names
    them.
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
    """Raise UsageError for a rotated format of a tensor that is stored as integers, which cannot be rotated."""
    if format.is_rotated:
        why = f"{name} is quantized already: its integers cannot be rotated"
        raise UsageError(f"weight format {format.name}", why, "convert the original model, or leave --rotate out")
