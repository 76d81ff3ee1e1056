"""The built-in rounding to integer formats, and the quantizer of one conversion with the checks of its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from infeng_convert.interfaces.hooks import QUANTIZERS
from infeng_convert.interfaces.quantizers import Quantized, Quantizer, QuantTarget
from infeng_core.api import PluginError, Plugins, UsageError
from infeng_core.api.formats import BUILT_IN, BUILTIN, Grid, Providers, QuantFormat, aligned_bytes

REMEDY = "convert with another quantizer (--quantizer nearest), or ask the plugin's author for a repair"


class Nearest:
    """The built-in rounding, docs/numerics.md: the best of a few scales for each group by itself."""

    knows_sub_scales = True

    def quantize(self, weights: NDArray[np.float32], target: QuantTarget) -> Quantized:
        """Return the codes and scales that ``QuantFormat.pack`` would store."""
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
    """The quantizer of a conversion, with everything that the identity of an artifact depends on."""

    name: str
    quantizer: Quantizer = field(repr=False)
    plugin: str
    version: str  # of the plugin
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the plugin

    @property
    def is_built_in(self) -> bool:
        """Whether it is the rounding of this wheel."""
        return self.plugin == "convert" and self.name == "nearest"

    @property
    def record(self) -> Mapping[str, Any]:
        """Plain data for identities and manifests; ``BUILT_IN`` if only the built-in rounding is used."""
        if self.is_built_in:
            return BUILT_IN
        settings = {key: _plain(value) for key, value in sorted(self.settings.items())}
        return {"name": self.name, "plugin": self.plugin, "version": self.version, "settings": settings}

    def grid(self, format: QuantFormat, k: int) -> Grid | None:
        """Return the grid of rows of ``k`` inputs that the quantizer chooses from; None if it is not used."""
        found = format.grid(k)
        knows_it = found is None or found.sub is None or getattr(self.quantizer, "knows_sub_scales", False)
        return found if knows_it else None

    def quantize(self, weights: NDArray[np.float32], target: QuantTarget, place: str) -> Quantized | None:
        """Call the quantizer; ``place`` names the matrix in errors. Raises PluginError for an invalid result."""
        if not (np.isfinite(weights.min()) and np.isfinite(weights.max())):
            return None  # the built-in rounding says where
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
        """Raise UsageError if the quantizer applies to no tensor of a model: {tensor: format}."""
        if getattr(self.quantizer, "needs_statistics", False) and not is_calibrated:
            remedy = "convert once, and run what that wrote: infeng convert SOURCE DEST --calibrate auto"
            raise UsageError(f"quantizer {self.name}", "it needs calibration text, which there is none of", remedy)
        closed = {
            format.name
            for format in formats.values()
            if not format.is_float and not format.sees_context and self.grid(format, 64) is None
        }
        if is_calibrated and closed:  # or what was asked for would be rounded without a look at the text
            remedy = "choose another format or quantizer (gptq), or --calibrate none"
            raise UsageError("--calibrate", f"does not reach {', '.join(sorted(closed))}", remedy)
        told = is_calibrated and any(format.sees_context for format in formats.values())
        if not self.is_built_in and not told and all(self.grid(format, 64) is None for format in formats.values()):
            names = ", ".join(sorted({format.name for format in formats.values()}))
            why = f"it chooses integers, every tensor is stored as {names}"
            raise UsageError(f"quantizer {self.name}", why, "leave it out, or choose an integer --format")


DEFAULT = QuantizerChoice("nearest", Nearest(), "convert", "1")


def quantizer_of(name: str, plugins: Providers) -> QuantizerChoice:
    """Return the quantizer called ``name`` as a conversion uses it; raises an InfengError with the known names."""
    quantizer = plugins.get(QUANTIZERS, name)
    if not isinstance(plugins, Plugins):
        return DEFAULT  # the only one without plugins
    plugin = plugins.provider(QUANTIZERS, name)
    assert plugin.manifest is not None
    known_as = getattr(quantizer, "identity", (plugin.name, plugin.manifest.version))
    if not isinstance(known_as, tuple | list) or [type(word) for word in known_as] != [str, str]:
        why = f"quantizer {name}: its identity is not a name and a version, two texts"
        raise PluginError(f"plugin {plugin.name}", why, REMEDY)
    made = QuantizerChoice(name, quantizer, known_as[0], known_as[1], plugins.settings(plugin))
    return DEFAULT if made.is_built_in else made


def described(record: Mapping[str, Any]) -> str:
    """Return a record for people: ``nearest``, ``clip 0.1.0``."""
    return " ".join(str(record[key]) for key in ("name", "version") if key in record)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in sorted(value.items())}
    return list(value) if isinstance(value, tuple) else value


def _wrong(made: Quantized, shape: tuple[int, ...], grid: Grid) -> str:
    """Return what is wrong with an answer's shapes, or "". Types and ranges are checked when it is packed."""
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
