"""The layout of a packed adapter in memory and in its file: a description and one run of bytes.

The bytes are pieces, one for each packed tensor, in this order: tensors as a step reads them, the embedding, saved
tensors, saved vectors. A piece holds arrays, each on a multiple of 64 bytes:

=============  =================================================================================================
tensor         A (panels of the rank rows of all parts, as ``stacked`` has them); then for each part B, its scales
               (int8, int8t4), the row scales (DoRA) and the bias, as far as the part has them
embedding      A (vocab, rank) float32, then as a part
saved tensor   panels in the base's format
saved vector   float32
=============  =================================================================================================
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core._native import NativeError
from infeng_core.errors import AdapterError
from infeng_core.formats.adapters.bounds import MAX_MAGNITUDE
from infeng_core.formats.adapters.packed import (
    AdapterDtype,
    LoraEmbedding,
    LoraPart,
    LoraTensor,
    PackedAdapter,
)
from infeng_core.formats.adapters.spec import A_FORMAT, AdapterSpec, PartSpec
from infeng_core.formats.adapters.stacked import int8_scales, stacked_bytes
from infeng_core.formats.adapters.tails import BLOCK, ROWS
from infeng_core.formats.adapters.target_modules import EMBED, base_tensor, target_modules
from infeng_core.formats.shards import ALIGN
from infeng_core.formats.tensors import LoadedModel
from infeng_core.kernels.storages import INTEGERS
from infeng_core.models.weights import PANEL_ROWS, Part, TensorSpec

B_TYPE: Mapping[AdapterDtype, Any] = {"f32": np.float32, "bf16": np.uint16, "int8": np.int8, "int8t4": np.uint8}
Arrays = Mapping[str, NDArray[Any]]
Shape = tuple[str, Any, tuple[int, ...]]  # name, dtype, shape of an array
ITEM_BYTES = {np.float32: 4, np.uint16: 2, np.int8: 1, np.uint8: 1}


def rotation_of(model: LoadedModel, tensor: str, dtype: AdapterDtype) -> int:
    """Return how many inputs of a tensor's A are rotated together; 0 if none are.

    Only an integer A reads rotated inputs, and only over a base that does.
    """
    if dtype not in INTEGERS:
        return 0
    base = base_tensor(model, tensor)
    return base.quant.rotation(base.k)


def padded(count: int, multiple: int) -> int:
    """Return ``count`` rounded up."""
    return -(-count // multiple) * multiple


def b_shape(dtype: AdapterDtype, panels: int, rank: int) -> tuple[int, int, int]:
    """Return the shape of the array of a B."""
    return (panels, rank // ROWS, BLOCK) if dtype == "int8t4" else (panels, rank, PANEL_ROWS)


@dataclass(frozen=True)
class AdapterImage:
    """A spec and its bytes over the shapes of a base."""

    spec: AdapterSpec
    pieces: Pieces = field(repr=False)
    data: NDArray[np.uint8] = field(repr=False)
    digest: str  # of the data
    base_name: str = ""  # the model that the adapter names as its base

    @cached_property
    def arrays(self) -> Mapping[str, Arrays]:
        """The arrays of each piece, views of ``data``."""
        return self.pieces.views(self.data)

    def adapter(self, model: LoadedModel, source: Path) -> PackedAdapter:
        """Return the adapter whose arrays are views of ``data``; raises the AdapterError of ``reach``."""
        content = json.dumps([self.spec.to_dict(), self.digest, model.id], sort_keys=True)
        views = Views(self.spec, model, self.arrays)
        return PackedAdapter(
            id=hashlib.sha256(content.encode()).hexdigest(),
            base=model.id,
            dtype=self.spec.dtype,
            source=source,
            tensors=views.tensors,
            embedding=views.embedding,
            saved_tensors=views.saved_tensors,
            saved_vectors=views.saved_vectors,
            base_name=self.base_name,
            reach=self.reach(model, source),
            invocation=self.spec.invocation,
            trained_tokens=self.spec.trained_tokens,
        )

    def reach(self, model: LoadedModel, source: Path) -> float:
        """Return the largest magnitude that an adapter may add to a weight of the base.

        Raises AdapterError if a number is NaN or infinite, or so large that results would become so, and if a saved
        matrix is not in the base's format.
        """
        reach = 0.0
        for name in self.spec.saved_tensors:
            base = base_tensor(model, name)
            try:
                base.quant.check(self.arrays[f"saved.{name}"]["panels"], 0, base.panels, base.k)
            except NativeError as error:
                why = f"its {name} is no {base.format} ({error})"
                raise AdapterError(f"{source}", why, "use another copy, or convert the adapter again") from None
        known = target_modules(model.config).specs
        for name, arrays in self.arrays.items():
            k = known[name].k if name in known else 0
            peaks = {key: _peak(self.spec, model, name, key, array, k) for key, array in arrays.items()}
            bad = next((key for key, peak in peaks.items() if not math.isfinite(peak)), None)
            if bad is not None:
                remedy = "use another copy, or convert the adapter again"
                raise AdapterError(f"{source}", f"{name} holds NaN or infinity in its {bad}", remedy)
            most = max([*peaks.values(), *_reaches(self.spec, name, peaks)], default=0.0)
            if not most <= MAX_MAGNITUDE:
                why = f"{name} may add numbers of {most:.3g}, whose squares float32 does not hold"
                raise AdapterError(f"{source}", why, "use another copy, or a smaller scale: its training has diverged")
            reach = max(reach, most)
        return reach


class Pieces:
    """The pieces of a spec over a base: (name, first byte, bytes) in order, and the arrays in each."""

    def __init__(self, spec: AdapterSpec, model: LoadedModel, *, is_first: bool = False) -> None:
        """Compute every offset; ``is_first``: in the layout of version 1."""
        self.spec = spec
        self.model = model
        self._is_first = is_first
        self.shapes: dict[str, list[Shape]] = {}
        known = target_modules(model.config).specs
        for name, parts in spec.tensors.items():
            self.shapes[name] = self._tensor(spec.rank(name), known[name], parts)
        if spec.embedding is not None:
            embed = known[EMBED]
            rows = Part("", embed.k)
            first: Shape = ("a", np.float32, (embed.parts[0].rows, spec.embedding.rank))
            self.shapes["embedding"] = [first, *self._part("", rows, spec.embedding)]
        for name in spec.saved_tensors:
            base = base_tensor(model, name)
            self.shapes[f"saved.{name}"] = [("panels", np.uint8, (base.panels * base.panel_bytes,))]
        for name in spec.saved_vectors:
            self.shapes[f"saved.{name}"] = [("vector", np.float32, (model.vectors[name].size,))]
        self.nbytes = {name: sum(map(_bytes, shapes)) for name, shapes in self.shapes.items()}
        self.total = sum(self.nbytes.values())

    def _tensor(self, rank: int, place: TensorSpec, parts: tuple[PartSpec, ...]) -> list[Shape]:
        if self._is_first:  # version 1 folds no panel
            rank = padded(rank, PANEL_ROWS)
        a = stacked_bytes(A_FORMAT[self.spec.dtype], rank, place.k)
        shapes: list[Shape] = [("a", np.uint8, (a,))] if a else []
        for index, (one, part) in enumerate(zip(place.parts, parts, strict=True)):
            shapes += self._part(f"{index}.", one, part)
        return shapes

    def _part(self, prefix: str, place: Part, part: PartSpec) -> Iterator[Shape]:
        columns = place.panels * PANEL_ROWS
        if part.rank:
            yield f"{prefix}b", B_TYPE[self.spec.dtype], b_shape(self.spec.dtype, place.panels, part.rank)
            if self.spec.dtype in INTEGERS:
                yield f"{prefix}b_scale", np.float32 if self._is_first else np.uint16, (columns,)
        if part.row_scale:
            yield f"{prefix}row_scale", np.float32, (columns,)
        if part.bias:
            yield f"{prefix}bias", np.float32, (columns,)

    def views(self, data: NDArray[np.uint8]) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the arrays of each piece, views of ``data``."""
        found: dict[str, dict[str, NDArray[Any]]] = {}
        offset = 0
        for name, shapes in self.shapes.items():
            arrays: dict[str, NDArray[Any]] = {}
            found[name] = arrays
            for shape in shapes:
                key, dtype, sizes = shape
                count = math.prod(sizes)
                arrays[key] = np.frombuffer(data, dtype, count, offset).reshape(sizes)
                offset += _bytes(shape)
        return found


def _bytes(shape: Shape) -> int:
    return padded(math.prod(shape[2]) * ITEM_BYTES[shape[1]], ALIGN)


class Views:
    """The parts of a PackedAdapter over the bytes of an image."""

    def __init__(self, spec: AdapterSpec, model: LoadedModel, arrays: Mapping[str, Arrays]) -> None:
        """Make the views; nothing is copied."""
        known = target_modules(model.config).specs
        self.tensors = {
            name: _tensor(known[name].parts, parts, arrays[name], spec.dtype) for name, parts in spec.tensors.items()
        }
        self.embedding = None
        if spec.embedding is not None:
            piece, scaling = arrays["embedding"], np.float32(spec.embedding.scaling)
            part = _part(Part("", known[EMBED].k), spec.embedding, 0, piece, "", spec.dtype)
            self.embedding = LoraEmbedding(spec.embedding.rank, piece["a"], float(scaling), part)
        self.saved_tensors = {
            name: base_tensor(model, name).holding(arrays[f"saved.{name}"]["panels"], name)
            for name in spec.saved_tensors
        }
        self.saved_vectors = {name: arrays[f"saved.{name}"]["vector"] for name in spec.saved_vectors}


def _tensor(places: tuple[Part, ...], parts: tuple[PartSpec, ...], arrays: Arrays, dtype: AdapterDtype) -> LoraTensor:
    rank = sum(part.rank for part in parts)
    scaling = np.zeros(padded(rank, PANEL_ROWS), np.float32)
    made: list[LoraPart] = []
    column = 0
    for index, (place, part) in enumerate(zip(places, parts, strict=True)):
        scaling[column : column + part.rank] = part.scaling
        if not part.is_empty:
            made.append(_part(place, part, column, arrays, f"{index}.", dtype))
        column += part.rank
    return LoraTensor(rank, arrays.get("a", np.empty(0, np.uint8)), scaling, tuple(made))


def _part(place: Part, part: PartSpec, column: int, arrays: Arrays, prefix: str, dtype: AdapterDtype) -> LoraPart:
    return LoraPart(
        rank=part.rank,
        u_column=column,
        first_panel=place.first_panel,
        panel_step=place.panel_step,
        panels=place.panels,
        b=arrays.get(f"{prefix}b", np.empty(b_shape(dtype, place.panels, 0), B_TYPE[dtype])),
        b_scale=arrays.get(f"{prefix}b_scale"),
        row_scale=arrays.get(f"{prefix}row_scale"),
        bias=arrays.get(f"{prefix}bias"),
    )


def _reaches(spec: AdapterSpec, name: str, peaks: Mapping[str, float]) -> Iterator[float]:
    """Yield the product of scaling and largest values for each part of a piece."""
    parts = (spec.embedding,) if name == "embedding" else spec.tensors.get(name, ())
    for index, part in enumerate(parts):
        if part is not None and part.rank:
            prefix = "" if name == "embedding" else f"{index}."
            yield abs(part.scaling)
            b = peaks.get(f"{prefix}b_scale", peaks[f"{prefix}b"])
            yield part.rank * abs(part.scaling) * peaks["a"] * b * peaks.get(f"{prefix}row_scale", 1.0)


def _peak(spec: AdapterSpec, model: LoadedModel, name: str, key: str, array: NDArray[Any], k: int) -> float:
    """Return the largest magnitude in an array of a piece, NaN if it contains one; int8 counts by its scales.

    k: inputs of a tensor's A.
    """
    if key == "panels":
        base = base_tensor(model, name.removeprefix("saved."))
        array = base.quant.unpack(array, 0, base.panels, base.k)
    elif key == "a" and array.dtype == np.uint8:
        if spec.dtype in INTEGERS:
            return 127.0 * _largest(int8_scales(A_FORMAT[spec.dtype], array, spec.rank(name), k))
        array = array.view(np.float32 if spec.dtype == "f32" else np.uint16)
    if key.endswith("b_scale"):
        return 127.0 * _largest(array)
    return 0.0 if array.dtype in (np.int8, np.uint8) else _largest(array)


def _largest(array: NDArray[Any]) -> float:
    if array.dtype == np.uint16:  # bf16: without signs, the bits sort like the values
        bits = int((array & 0x7FFF).max(initial=0)) << 16
        return float(np.frombuffer(bits.to_bytes(4, "little"), np.float32)[0])
    return float(max(array.max(initial=0.0), -array.min(initial=0.0)))
