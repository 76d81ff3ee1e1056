"""How far the numbers of an adapter reach, and that they are numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core._native import NativeError
from infeng_core.errors import AdapterError
from infeng_core.formats.adapters.bounds import MAX_MAGNITUDE
from infeng_core.formats.adapters.spec import A_FORMAT, AdapterSpec
from infeng_core.formats.adapters.stacked import int8_scales
from infeng_core.formats.adapters.target_modules import base_tensor, target_modules
from infeng_core.formats.tensors import LoadedModel

Arrays = Mapping[str, NDArray[Any]]


def check_range(spec: AdapterSpec, pieces: Mapping[str, Arrays], model: LoadedModel, path: Path) -> float:
    """Return the largest number that an adapter may add to a weight of the base, in magnitude.

    Raises AdapterError where a number is NaN or infinite, or so large that rows of a batch would become that, and where
    a matrix of its own is none of the base's format.
    """
    reach = 0.0
    for name in spec.saved_tensors:
        base = base_tensor(model, name)
        try:
            base.quant.check(pieces[f"saved.{name}"]["panels"], 0, base.panels, base.k)
        except NativeError as error:
            why = f"its {name} is no {base.format} ({error})"
            raise AdapterError(f"{path}", why, "use another copy, or convert the adapter again") from None
    for name, arrays in pieces.items():
        peaks = {key: _peak(spec, model, name, key, array) for key, array in arrays.items()}
        bad = next((key for key, peak in peaks.items() if not math.isfinite(peak)), None)
        if bad is not None:
            remedy = "use another copy, or convert the adapter again"
            raise AdapterError(f"{path}", f"{name} holds NaN or infinity in its {bad}", remedy)
        most = max([*peaks.values(), *_reaches(spec, name, peaks)], default=0.0)
        if not most <= MAX_MAGNITUDE:
            why = f"{name} may add numbers of {most:.3g}, whose squares float32 does not hold"
            raise AdapterError(f"{path}", why, "use another copy, or a smaller scale: its training has diverged")
        reach = max(reach, most)
    return reach


def _reaches(spec: AdapterSpec, name: str, peaks: Mapping[str, float]) -> Iterator[float]:
    """Give scaling and largest product of each part of a piece."""
    parts = (spec.embedding,) if name == "embedding" else spec.tensors.get(name, ())
    for index, part in enumerate(parts):
        if part is not None and part.rank:
            prefix = "" if name == "embedding" else f"{index}."
            yield abs(part.scaling)
            b = peaks.get(f"{prefix}b_scale", peaks[f"{prefix}b"])
            yield part.rank * abs(part.scaling) * peaks["a"] * b * peaks.get(f"{prefix}row_scale", 1.0)


def _peak(spec: AdapterSpec, model: LoadedModel, name: str, key: str, array: NDArray[Any]) -> float:
    """Return the largest magnitude of an array of a piece, NaN where it holds that; int8 counts by its scales."""
    if key == "panels":
        base = base_tensor(model, name.removeprefix("saved."))
        array = base.quant.unpack(array, 0, base.panels, base.k)
    elif key == "a" and array.dtype == np.uint8:
        if spec.dtype == "int8":
            k = target_modules(model.config).specs[name].k
            return 127.0 * _largest(int8_scales(A_FORMAT["int8"], array, spec.rank(name), k))
        array = array.view(np.float32 if spec.dtype == "f32" else np.uint16)
    if key.endswith("b_scale"):
        return 127.0 * _largest(array)
    return 0.0 if array.dtype == np.int8 else _largest(array)


def _largest(array: NDArray[Any]) -> float:
    if array.dtype == np.uint16:  # bf16: without their signs, bits are in the order of what they mean
        array = ((array & 0x7FFF).max(initial=0).astype(np.uint32) << np.uint32(16)).reshape(1).view(np.float32)
    return float(max(array.max(initial=0.0), -array.min(initial=0.0)))
