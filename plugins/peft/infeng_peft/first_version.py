"""Engine-native adapters in version 1 of their format, laid out anew at each load.

A last panel with 8 rank rows or fewer becomes a folded one, exactly. The scales of an int8 B, which were float32, are
rounded to bf16, by up to 2**-8 of them; converting the source again would choose B under the rounded scales.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import get_logger
from infeng_core.api.adapters import (
    ARTIFACT_FILE,
    AdapterDtype,
    AdapterImage,
    Pieces,
    adapter_digest,
    read_pieces,
    stacked_panels,
)
from infeng_core.api.formats import PANEL_ROWS, LoadedModel, aligned_bytes
from infeng_peft.floats import to_bf16

if TYPE_CHECKING:
    from infeng_core.api.engines import PackedAdapter

HALF = PANEL_ROWS // 2  # rank rows of a folded panel
SCALES = 64  # bytes before the lines of an int8 panel
LINE = (PANEL_ROWS, 4)  # bytes of each lane in a line of any format


_log = get_logger(__name__)


class FirstVersionReader:
    """The reader of adapters in version 1, for the hook."""

    def recognizes(self, path: Path) -> bool:
        """Return False: the engine recognizes its own format, and asks this reader by its name for version 1."""
        return False

    def load(
        self, path: Path, model: LoadedModel, dtype: AdapterDtype, scale: float, cache_bytes: int
    ) -> PackedAdapter:
        """Return the adapter in the directory ``path``; raises AdapterError."""
        artifact, old, data = read_pieces(path, model, dtype, scale)
        remedy = "convert the adapter again: infeng convert-adapter PEFT DEST --model MODEL --force"
        _log.info(
            "an adapter of format 1.x is laid out anew at each load", adapter=f"{path / ARTIFACT_FILE}", remedy=remedy
        )
        pieces, data = migrate(old, data)
        image = AdapterImage(artifact.spec.scaled(scale), pieces, data, adapter_digest(data), artifact.base_name)
        return image.adapter(model, path)


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
