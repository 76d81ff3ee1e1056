"""The extension module of this wheel; the source is in ``native/``."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

def pack(
    descriptor: Any,  # of a weight format, from the core's format_descriptor
    source: NDArray[Any],  # (n, k) float32, float16, or uint16 holding bf16; float32 for a library's format
    out: Any,  # writable buffer of whole panels, 64-byte aligned at out_offset
    *,
    bf16: bool = False,
    out_offset: int = 0,
    first_panel: int = 0,
    panel_step: int = 1,
    threads: int = 1,
    context: Any = None,  # what a library sees of the matrix: the core's MatrixContext
) -> None:
    """Quantize and lay out: panel i of ``source`` becomes panel first_panel + i * panel_step of ``out``; GIL released.

    Raises NativeError: "not_finite" (with the row and column), "out_of_range" (fp16 scale overflow).
    """

def pack_codes(
    descriptor: Any,
    codes: NDArray[np.int8],  # (n, k)
    scales: NDArray[np.float32],  # (n, groups)
    out: Any,  # as of pack
    *,
    out_offset: int = 0,
    first_panel: int = 0,
    panel_step: int = 1,
    threads: int = 1,
) -> None:
    """Lay out codes and scales that are known already; scales are rounded to the format's type. GIL released.

    Raises NativeError: "invalid_argument" (types, shapes), "not_finite" (a scale), "out_of_range" (a code, a scale that
    fp16 does not hold), both with row and column; "unsupported" for a format without a grid.
    """

def unpack_codes(
    descriptor: Any, data: Any, offset: int, panels: int, k: int, *, first_panel: int = 0, panel_step: int = 1
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the codes, (panels * 16, k), and scales, (panels * 16, groups), of a format that has a grid."""

def pack_units(
    descriptor: Any,
    units: NDArray[np.int8],  # (n, k)
    scales: NDArray[np.float32],  # (n, 1)
    sub_scales: NDArray[np.int8],  # (n, groups), from 1 on
    zeros: NDArray[np.int8],  # (n, groups)
    out: Any,  # as of pack
    *,
    first_panel: int = 0,
    panel_step: int = 1,
    threads: int = 1,
) -> None:
    """Lay out weights scale * sub_scale * (unit - zero) of a format with integer sub-scales; GIL released.

    Raises NativeError as ``pack_codes`` does, and "out_of_range" where sub_scale * (unit - zero) leaves -128 to 127.
    """

def unpack_units(
    descriptor: Any, data: Any, offset: int, panels: int, k: int, *, first_panel: int = 0, panel_step: int = 1
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.int8], NDArray[np.int8]]:
    """Return the units, scales, sub-scales and zero points of a format with integer sub-scales."""

def pack_minima(
    descriptor: Any,
    units: NDArray[np.int8],  # (n, k), in [0, 15]
    scales: NDArray[np.float32],  # (n, superblocks)
    minimum_scales: NDArray[np.float32],  # (n, superblocks)
    sub_scales: NDArray[np.uint8],  # (n, groups)
    minima: NDArray[np.uint8],  # (n, groups)
    out: Any,  # as of pack
    *,
    first_panel: int = 0,
    panel_step: int = 1,
    threads: int = 1,
) -> None:
    """Lay out weights scale * sub_scale * unit - minimum_scale * minimum; scales are rounded to fp16. GIL released.

    Raises NativeError as ``pack_codes`` does.
    """
