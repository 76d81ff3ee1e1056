"""In which weight format a module that others quantized is kept: exactly where one can, else in the nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from infeng_core.formats.choice import FormatChoice
from infeng_core.formats.gguf.storage import NEAREST, require_unturned
from infeng_core.formats.quant import BUILTIN, FormatLookup, Grid, QuantFormat
from infeng_core.formats.quantized.module import Integers, Module
from infeng_core.formats.quantizers import Quantized
from infeng_core.models.weights import Layout, TensorSpec

EXACT = ("int4-g64", "int4-g32", "int8-row", "int8-g32")
"""Formats of codes and scales, small ones first; those that this engine has."""

LEFT = "int8-row"
"""For what is stored as floats beside quantized weights."""

Modules = Mapping[str, Sequence[Module | None]]
"""Of each packed tensor the modules that its parts are stored in; None for one in floats."""


def fits(module: Module, format: QuantFormat) -> bool:
    """Return whether ``format`` holds the codes and scales of ``module``, but for -128 where it ends at -127."""
    grid = format.grid(module.k) if format.name in EXACT and format.name in BUILTIN else None
    if grid is None or not isinstance(module, Integers):
        return False
    has_range = grid.low <= module.low + (module.bits == 8) and -module.low - 1 <= grid.high
    has_groups = module.group >= module.k or module.group % grid.group == 0
    return has_range and has_groups and module.is_symmetric and module.is_ordered and _has_scales(module, grid)


def _has_scales(module: Integers, grid: Grid) -> bool:
    return module.scale_type is not None and (module.scale_type == np.float16 or grid.scale == np.float32)


def holds(module: Module, format: str) -> bool:
    """Return whether the weight format named ``format`` loses nothing of ``module``, but for codes of -128."""
    return format == "f32" or (format in BUILTIN and fits(module, BUILTIN[format]))


def kept(module: Integers, grid: Grid, begin: int, rows: int) -> tuple[Quantized, int]:
    """Return rows of a module that fits, a scale repeated for every group of ``grid``, and how many codes were -128.

    These become -127 where the grid ends there.
    """
    codes = module.codes()[begin : begin + rows]
    below = int(np.count_nonzero(codes < grid.low))
    if below:
        codes = np.maximum(codes, np.int8(grid.low))
    group = np.arange(grid.groups(module.k)) * grid.group // module.group
    scales = module.scales()[begin : begin + rows][:, group]
    return Quantized(np.ascontiguousarray(codes), np.ascontiguousarray(scales)), below


def formats(layout: Layout, modules: Modules, choice: FormatChoice, lookup: FormatLookup) -> dict[str, str]:
    """Return the format of every tensor.

    What nobody asked for keeps the checkpoint's own precision; what its maker left in floats, because it counts, gets 8
    bits.
    """
    found = choice.for_model(layout, lookup)
    for spec in layout.tensors:
        if not choice.asks(spec.name):
            found[spec.name] = _nearest(spec, modules)
        if any(modules[spec.name]):
            require_unturned(spec.name, lookup(found[spec.name]))
    return found


def _nearest(spec: TensorSpec, modules: Modules) -> str:
    stored = modules[spec.name]
    if not any(stored):
        return LEFT
    return next((name for name in EXACT if all(one is not None and holds(one, name) for one in stored)), NEAREST)


def changes(layout: Layout, modules: Modules, formats: Mapping[str, str]) -> dict[str, str]:
    """Return what is rounded again, in words by "how it was stored -> format"."""
    count: dict[str, int] = {}
    for spec in layout.tensors:
        for module in modules[spec.name]:
            if module is not None and not holds(module, formats[spec.name]):
                key = f"{module.label} -> {formats[spec.name]}"
                count[key] = count.get(key, 0) + 1
    return {key: f"{number} tensor{'s' if number > 1 else ''}" for key, number in sorted(count.items())}
