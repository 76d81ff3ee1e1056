"""Packing of checkpoint tensors; bad values are detected and named here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from infeng_convert.interfaces.quantizers import Moments, QuantTarget, Seen, WithMinima
from infeng_convert.interfaces.readers import Checkpoint
from infeng_convert.quantizers import DEFAULT, QuantizerChoice
from infeng_core.api import ModelError, NativeError
from infeng_core.api.formats import (
    PANEL_ROWS,
    Layout,
    MatrixContext,
    Part,
    QuantFormat,
    TensorSpec,
    VectorSpec,
    rotated,
    widened,
)


def pack_tensor(
    spec: TensorSpec,
    checkpoint: Checkpoint,
    format: QuantFormat,
    out: NDArray[np.uint8],
    threads: int,
    quantizer: QuantizerChoice = DEFAULT,
    statistic: Moments = lambda expert: None,
) -> None:
    """Fill ``out``, spec.panels * panel_bytes bytes, 64-byte aligned, with the parts of one tensor.

    ``quantizer`` chooses codes and scales if the format has them; ``statistic`` is its input. Raises ModelError
    naming file, tensor, row and column of a value that is not finite or does not fit the format, PluginError naming
    the same for an invalid result of the quantizer.
    """
    for index, part in enumerate(spec.parts):
        if _pack_kept(part, checkpoint, format, out, threads):
            continue
        expert = index * spec.experts // len(spec.parts)
        told = partial(statistic, expert)
        if not _pack_chosen(spec, part, checkpoint, format, out, threads, quantizer, told):
            _pack_rounded(spec, part, checkpoint, format, out, threads, expert if spec.experts else None, told)


def chosen_bytes(spec: TensorSpec, format: QuantFormat, quantizer: QuantizerChoice) -> int:
    """Return the peak bytes of ``pack_tensor`` for a quantizer.

    One part as float32, its codes and scales, and in binary64 the rounding error, as gptq needs it; rotated one more.
    """
    grid, turned = quantizer.grid(format, spec.k), 6 * spec.k if format.is_rotated else 0
    if grid is None or quantizer.is_built_in:  # a library sees float32
        return max(part.rows for part in spec.parts) * (4 * spec.k if format.sees_context else turned)
    row = turned + 13 * spec.k + 4 * grid.groups(spec.k) + (2 * grid.sub.groups(spec.k) if grid.sub else 0)
    return max(part.rows for part in spec.parts) * row


SUMMED = 2048 * 16
"""Bytes per column while rows are summed: 2048 rows, three times in binary32 and twice in 16 bits."""


def statistic_bytes(layout: Layout) -> int:
    """Return the peak bytes of the statistics of one op: H, its factors and the drift, three squares in binary64.

    For experts the third is H of all rows. Other statistics exist in bf16 too, and for one part its target. While
    rows are summed there are rows in place of factors.
    """
    return max(
        max(24 * spec.k**2 + (0 if spec.experts else _aimed_bytes(spec)), 16 * spec.k**2 + SUMMED * spec.k)
        for spec in layout.tensors
    )


def _aimed_bytes(spec: TensorSpec) -> int:
    """Return the bytes of a tensor in bf16, or of a part's error and target: two in binary64, one in binary32."""
    return max(2 * spec.panels * PANEL_ROWS * spec.k, 20 * max(part.rows for part in spec.parts) * spec.k)


def _pack_kept(part: Part, checkpoint: Checkpoint, format: QuantFormat, out: NDArray[np.uint8], threads: int) -> bool:
    """Lay out the checkpoint's own codes; return False if it has none that fit the format."""
    kept = checkpoint.kept(part, format)
    if kept is None:
        return False
    place = {"first_panel": part.first_panel, "panel_step": part.panel_step, "threads": threads}
    if isinstance(kept, WithMinima):
        format.pack_minima(kept.codes, kept.scales, kept.minimum_scales, kept.sub_scales, kept.minima, out, **place)
    else:
        format.pack_codes(kept.codes, kept.scales, out, sub_scales=kept.sub_scales, zeros=kept.zeros, **place)
    return True


def _pack_rounded(
    spec: TensorSpec,
    part: Part,
    checkpoint: Checkpoint,
    format: QuantFormat,
    out: NDArray[np.uint8],
    threads: int,
    expert: int | None,
    statistic: Callable[[], Seen | None],
) -> None:
    """Round and lay out in one pass, from the checkpoint's own bytes."""
    source = checkpoint.array(part)
    place: dict[str, Any] = {"first_panel": part.first_panel, "panel_step": part.panel_step, "threads": threads}
    if format.sees_context:
        seen = statistic()
        moments = None if seen is None else seen.statistic
        place["context"] = MatrixContext(spec.name, checkpoint.name(part), expert, moments)
    try:
        format.pack(source, out, bf16=source.dtype == np.uint16, **place)
    except NativeError as error:
        _refuse(part, checkpoint, format, error)


def _pack_chosen(
    spec: TensorSpec,
    part: Part,
    checkpoint: Checkpoint,
    format: QuantFormat,
    out: NDArray[np.uint8],
    threads: int,
    quantizer: QuantizerChoice,
    statistic: Callable[[], Seen | None],
) -> bool:
    """Lay out the quantizer's choice; return False if it leaves the part to the built-in rounding."""
    grid = quantizer.grid(format, spec.k)
    if grid is None or quantizer.is_built_in:  # equal codes come from _pack_rounded, which copies nothing
        return False
    target = QuantTarget(checkpoint.name(part), spec.name, format.stored, grid)
    if (seen := statistic()) is not None:
        target = replace(target, statistic=seen.statistic, drift=seen.drift)
    weights = widened(checkpoint.array(part))
    turned = rotated(weights, format.rotation(spec.k)) if format.is_rotated else weights
    made = quantizer.quantize(turned, target, checkpoint.place(part))
    if made is None:
        return False
    place = {"first_panel": part.first_panel, "panel_step": part.panel_step, "threads": threads}
    try:
        format.pack_codes(made.codes, made.scales, out, sub_scales=made.sub_scales, zeros=made.zeros, **place)
    except NativeError as error:
        quantizer.refuse(str(error), checkpoint.place(part))
    return True


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
    """Turn a packing error into one that names the tensor; it runs once, so it may search slowly."""
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
