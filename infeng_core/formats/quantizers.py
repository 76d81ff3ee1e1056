"""The interface of a quantizer, which chooses codes and scales of integer formats, and the built-in rounding."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import PluginError, UsageError
from infeng_core.formats.quant import BUILTIN, Grid, QuantFormat
from infeng_core.formats.shards import aligned_bytes

REMEDY = "convert with another quantizer (--quantizer nearest), or ask the plugin's author for a repair"


@dataclass(frozen=True)
class Seen:
    """Statistics of calibration text for a matrix (m, k): ``QuantTarget`` describes each."""

    statistic: NDArray[np.float64]
    drift: NDArray[np.float64] | None = None


Moments = Callable[[int], Seen | None]
"""By expert (0 without experts), the statistics of its matrix's inputs."""


@dataclass(frozen=True)
class QuantTarget:
    """The matrix to quantize, and its format. Later versions may add fields; unknown values are None."""

    name: str  # of the checkpoint: "model.layers.3.self_attn.q_proj.weight"
    tensor: str  # the packed tensor that contains it: "layers.3.qkv_proj"
    format: str  # "int4-g64"
    grid: Grid  # the stored form of this matrix
    statistic: NDArray[np.float64] | None = None  # H = X'X / n, (k, k), of n calibration rows X, the matrix's inputs
    drift: NDArray[np.float64] | None = None  # (Y - X)'X / n, (k, k), Y the inputs in the unquantized model
    budget: int | None = None  # bytes that a recipe grants the packed tensor

    @property
    def layer(self) -> int | None:
        """The layer's number; None outside the layers, such as for the embedding."""
        found = re.match(r"layers\.(\d+)\.", self.tensor)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Quantized:
    """A matrix (n, k) in codes: weight = scale * code, or scale * sub_scale * (code - zero) where the grid has ``sub``.

    ``scales`` are (n, groups): column j belongs to inputs [j * group, (j + 1) * group) of the grid; ``zeros`` and
    ``sub_scales`` are (n, sub-groups) in the same way.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]  # rounded to ``grid.scale`` when stored
    zeros: NDArray[np.int8] | None = None
    sub_scales: NDArray[np.int8] | None = None


@dataclass(frozen=True)
class WithMinima:
    """A matrix (n, k) as formats with minima hold it: weight = scale * sub_scale * code - minimum_scale * minimum."""

    codes: NDArray[np.int8]  # (n, k)
    scales: NDArray[np.float32]  # (n, superblocks), values of fp16, as ``minimum_scales``
    minimum_scales: NDArray[np.float32]
    sub_scales: NDArray[np.uint8]  # (n, groups), as ``minima``
    minima: NDArray[np.uint8]


Kept = Quantized | WithMinima
"""A checkpoint's own quantized values."""


class Quantizer(Protocol):
    """Chooses codes and scales. Registered by name through the hook ``infeng_quantizers``."""

    def quantize(self, weights: NDArray[np.float32], target: QuantTarget) -> Quantized | None:
        """Return the codes and scales of ``weights``, (n, k) and finite; None leaves it to the built-in rounding.

        A quantizer with a true attribute ``needs_statistics`` is used only by conversions that calibrate. Only one
        with a true ``knows_sub_scales`` is asked for formats whose grid has ``sub``. ``identity``, a plugin's name
        and a version, replaces the plugin's in records: a new wheel then makes the same artifacts.

        It is called once for each matrix, in the order of the layers, and may write to ``weights``. Equal matrices
        and targets must give equal results: a conversion is reproducible.
        """


class Nearest:
    """The built-in rounding, docs/numerics.md: the best of a few scales for each group by itself."""

    knows_sub_scales = True

    def quantize(self, weights: NDArray[np.float32], target: QuantTarget) -> Quantized:
        """Return the codes that ``QuantFormat.pack`` would store."""
        format = BUILTIN[target.format]
        rows, k = weights.shape
        panels = -(-rows // 16)
        packed = aligned_bytes(panels * format.panel_bytes(k))
        format.pack(weights, packed)
        if target.grid.sub is not None:
            codes, scales, sub_scales, zeros = format.unpack_units(packed, 0, panels, k)
            return Quantized(codes[:rows], scales[:rows], zeros[:rows], sub_scales[:rows])
        codes, scales = format.unpack_codes(packed, 0, panels, k)
        return Quantized(codes[:rows], scales[:rows])


@dataclass(frozen=True)
class QuantizerChoice:
    """The quantizer of a conversion, with everything that enters an artifact's identity."""

    name: str
    quantizer: Quantizer = field(repr=False)
    plugin: str
    version: str  # of the plugin
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the plugin

    @property
    def is_built_in(self) -> bool:
        """Whether it is the core's own rounding."""
        return self.plugin == "core" and self.name == "nearest"

    @property
    def record(self) -> Mapping[str, Any]:
        """Plain data for identities and manifests; ``BUILT_IN`` if only the built-in rounding is used."""
        if self.is_built_in:
            return BUILT_IN
        settings = {key: _plain(value) for key, value in sorted(self.settings.items())}
        return {"name": self.name, "plugin": self.plugin, "version": self.version, "settings": settings}

    def grid(self, format: QuantFormat, k: int) -> Grid | None:
        """Return the grid, for rows of ``k`` inputs, from which the quantizer chooses; None if it is not asked."""
        found = format.grid(k)
        knows_it = found is None or found.sub is None or getattr(self.quantizer, "knows_sub_scales", False)
        return found if knows_it else None

    def quantize(self, weights: NDArray[np.float32], target: QuantTarget, place: str) -> Quantized | None:
        """Call the quantizer; ``place`` names the matrix in errors. Raises PluginError for an invalid result."""
        if not (np.isfinite(weights.min()) and np.isfinite(weights.max())):
            return None  # the built-in rounding reports the place
        try:
            made = self.quantizer.quantize(weights, target)
        except PluginError as error:
            raise PluginError(error.what, f"{error.why}, for {place}", REMEDY) from error
        if made is not None and (text := _wrong(made, weights.shape, target.grid)):
            self.refuse(text, place)
        return made

    def refuse(self, why: str, place: str) -> NoReturn:
        """Raise the PluginError for a result that cannot be stored."""
        raise PluginError(f"plugin {self.plugin}", f"quantizer {self.name}: {why}, for {place}", REMEDY)

    def require_use(self, formats: Mapping[str, QuantFormat], *, is_calibrated: bool) -> None:
        """Raise UsageError if no tensor of a model ({tensor: format}) can be given to the quantizer."""
        if getattr(self.quantizer, "needs_statistics", False) and not is_calibrated:
            remedy = "convert once, and run what that wrote: infeng convert SOURCE DEST --calibrate auto"
            raise UsageError(f"quantizer {self.name}", "it needs calibration text, which there is none of", remedy)
        closed = {format.name for format in formats.values() if not format.is_float and self.grid(format, 64) is None}
        if is_calibrated and closed:  # such tensors would be rounded without regard to the text
            remedy = "choose another format or quantizer (gptq), or --calibrate none"
            raise UsageError("--calibrate", f"does not reach {', '.join(sorted(closed))}", remedy)
        if not self.is_built_in and all(self.grid(format, 64) is None for format in formats.values()):
            names = ", ".join(sorted({format.name for format in formats.values()}))
            why = f"it chooses integers, every tensor is stored as {names}"
            raise UsageError(f"quantizer {self.name}", why, "leave it out, or choose an integer --format")


BUILT_IN: Mapping[str, Any] = MappingProxyType({"name": "nearest"})
DEFAULT = QuantizerChoice("nearest", Nearest(), "core", "1")


def described(record: Mapping[str, Any]) -> str:
    """Return a record as text: ``nearest``, ``clip 0.1.0``."""
    return " ".join(str(record[key]) for key in ("name", "version") if key in record)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in sorted(value.items())}
    return list(value) if isinstance(value, tuple) else value


def _wrong(made: Quantized, shape: tuple[int, ...], grid: Grid) -> str:
    """Return what is wrong with a result's shapes, or "". Types and ranges are checked when it is laid out."""
    groups = (shape[0], grid.groups(shape[1]))
    if made.codes.shape != shape:
        return f"its codes are {made.codes.shape}, not {shape}"
    if made.scales.shape != groups:
        return f"its scales are {made.scales.shape}, not {groups}"
    for name, values in (("zero points", made.zeros), ("sub-scales", made.sub_scales)):
        wanted = None if grid.sub is None else (shape[0], grid.sub.groups(shape[1]))
        if values is None and wanted is not None:
            return f"it has no {name}, the format has some"
        if values is not None and wanted is None:
            return f"it has {name}, the format has none"
        if values is not None and values.shape != wanted:
            return f"its {name} are {values.shape}, not {wanted}"
    return ""
