"""The functions of the core's interface ``Packer``: formats by name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api.formats import MatrixContext
from infeng_core.api.kernels import native
from infeng_packing import _native


def pack(
    format: str,
    source: NDArray[Any],
    out: Any,
    *,
    bf16: bool = False,
    context: MatrixContext | None = None,
    **place: int,
) -> None:
    """Quantize and lay out ``source``, (n, k) float32, float16 or uint16 holding bf16, in panels of ``out``.

    A library's format packs float32 only, and sees ``context``.
    """
    _native.pack(native.format_descriptor(format), source, out, bf16=bf16, context=context, **place)


def pack_codes(format: str, codes: NDArray[np.int8], scales: NDArray[np.float32], out: Any, **place: int) -> None:
    """Lay out codes, (n, k), and scales, (n, groups)."""
    _native.pack_codes(native.format_descriptor(format), codes, scales, out, **place)


def pack_units(
    format: str,
    units: NDArray[np.int8],
    scales: NDArray[np.float32],
    sub_scales: NDArray[np.int8],
    zeros: NDArray[np.int8],
    out: Any,
    **place: int,
) -> None:
    """Lay out codes, (n, k), with scales, (n, 1), sub-scales and zero points, both (n, groups)."""
    _native.pack_units(native.format_descriptor(format), units, scales, sub_scales, zeros, out, **place)


def pack_minima(
    format: str,
    units: NDArray[np.int8],
    scales: NDArray[np.float32],
    minimum_scales: NDArray[np.float32],
    sub_scales: NDArray[np.uint8],
    minima: NDArray[np.uint8],
    out: Any,
    **place: int,
) -> None:
    """Lay out codes, (n, k), with both scales, (n, superblocks), sub-scales and minima, both (n, groups)."""
    described = native.format_descriptor(format)
    _native.pack_minima(described, units, scales, minimum_scales, sub_scales, minima, out, **place)


def unpack_codes(
    format: str, data: Any, offset: int, panels: int, k: int, **place: int
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return codes, (panels * 16, k), and scales, (panels * 16, groups)."""
    return _native.unpack_codes(native.format_descriptor(format), data, offset, panels, k, **place)


def unpack_units(
    format: str, data: Any, offset: int, panels: int, k: int, **place: int
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.int8], NDArray[np.int8]]:
    """Return codes, scales, (panels * 16, 1), sub-scales and zero points."""
    return _native.unpack_units(native.format_descriptor(format), data, offset, panels, k, **place)
