"""From checkpoint tensors to packed ones: where bad values are found and named."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from infeng_core._native import NativeError
from infeng_core.errors import ModelError
from infeng_core.formats.huggingface import Checkpoint, widened
from infeng_core.formats.quant import QuantFormat
from infeng_core.models.weights import Part, TensorSpec, VectorSpec


def pack_tensor(
    spec: TensorSpec, checkpoint: Checkpoint, format: QuantFormat, out: NDArray[np.uint8], threads: int
) -> None:
    """Fill ``out``, spec.panels * panel_bytes bytes, 64-byte aligned, with the parts of one tensor.

    Raises ModelError naming file, tensor, row and column of a value that is not finite or does not fit the format.
    """
    for part in spec.parts:
        source = checkpoint.array(part)
        try:
            format.pack(
                source,
                out,
                bf16=source.dtype == np.uint16,
                first_panel=part.first_panel,
                panel_step=part.panel_step,
                threads=threads,
            )
        except NativeError as error:
            _refuse(part, checkpoint, format, error)


def gather_vector(spec: VectorSpec, checkpoint: Checkpoint) -> NDArray[np.float32]:
    """Return one vector, (spec.size,) float32; raises ModelError naming the row of a value that is not finite."""
    out = np.zeros(spec.size, np.float32)
    for part in spec.parts:
        values = widened(checkpoint.array(part))
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            row = int(bad[0])
            _not_finite(checkpoint.place(part), f"{values[row]} at row {row}")
        out[part.columns()] = values
    return out


def _refuse(part: Part, checkpoint: Checkpoint, format: QuantFormat, error: NativeError) -> NoReturn:
    """Turn a packing error into one that names the tensor; runs once, so it may search slowly."""
    if error.code == "not_finite":
        for row, values in enumerate(checkpoint.array(part)):
            bad = np.flatnonzero(~np.isfinite(widened(values)))
            if bad.size:
                column = int(bad[0])
                _not_finite(checkpoint.place(part), f"{widened(values)[column]} at row {row}, column {column}")
    remedy = "store it in another format: --set 'model.formats.NAME=bf16' or a float model.format"
    raise ModelError(checkpoint.place(part), f"does not fit {format.name} ({error})", remedy) from None


def _not_finite(place: str, what: str) -> NoReturn:
    raise ModelError(
        place, f"holds {what}", "the weights are damaged or the training diverged: use another copy"
    ) from None
