"""Conversion of adapters in version 1 of their format to the present layout.

A last panel with 8 rank rows or fewer becomes a folded one, exactly. The scales of an int8 B, which were float32, are
rounded to bf16, by up to 2**-8 of them; converting the source again would choose B under the rounded scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.formats.adapters.image import Pieces
from infeng_core.formats.adapters.stacked import HALF, stacked_panels
from infeng_core.formats.floats import to_bf16
from infeng_core.formats.shards import aligned_bytes
from infeng_core.models.weights import PANEL_ROWS

SCALES = 64  # bytes before the lines of an int8 panel
LINE = (PANEL_ROWS, 4)  # bytes of each lane in a line of any format


def migrate(old: Pieces, data: NDArray[np.uint8]) -> tuple[Pieces, NDArray[np.uint8]]:
    """Return the pieces and bytes of a version 1 adapter in the present layout."""
    new = Pieces(old.spec, old.model)
    out = aligned_bytes(new.total)
    out[:] = 0
    made = new.views(out)
    for name, arrays in old.views(data).items():
        for key, array in arrays.items():
            to = made[name][key]
            if key == "a" and name in old.spec.tensors:
                _fold_last(old, name, array, to)
            else:
                to[:] = to_bf16(array) if key.endswith("b_scale") else array
    return new, out


def _fold_last(old: Pieces, name: str, a: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    whole, is_folded = stacked_panels(old.spec.rank(name))
    panel = a.size // (whole + is_folded)
    out[: whole * panel] = a[: whole * panel]
    if is_folded:
        _fold(a[whole * panel :], out[whole * panel :], SCALES if old.spec.dtype == "int8" else 0)


def _fold(panel: NDArray[np.uint8], out: NDArray[np.uint8], head: int) -> None:
    scales: NDArray[Any] = panel[:head].reshape(-1, PANEL_ROWS, 4)[:, :HALF]
    out[:head].reshape(-1, 2, HALF, 4)[:] = scales[:, None]
    lines, folded = panel[head:].reshape(-1, *LINE), out[head:].reshape(-1, *LINE)
    folded[:] = 128 if head else 0  # the code for 0
    folded[:, :HALF] = lines[: len(folded), :HALF]
    others = lines[len(folded) :, :HALF]
    folded[: len(others), HALF:] = others
