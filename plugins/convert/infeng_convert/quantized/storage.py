"""The weight format in which a quantized module is kept: an exact one if possible, else the nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from infeng_convert.interfaces.quantizers import Quantized, WithMinima
from infeng_convert.kept_integers import NEAREST, require_unturned
from infeng_convert.quantized.blocks import Blocks
from infeng_convert.quantized.module import Integers, Module
from infeng_convert.quantized.scheme import Scheme
from infeng_core.api.formats import (
    BUILTIN,
    ROUTER,
    FormatChoice,
    FormatLookup,
    Grid,
    Layout,
    MinimaGrid,
    QuantFormat,
    TensorSpec,
)

EXACT = ("int4-g64", "int4-g32", "int4-a256", "int4-a128", "int8-row", "int8-g32")
"""Formats of codes and scales that this engine has, small ones first."""

LEFT = "int8-row"
"""The format for floats beside quantized weights; NEAREST if one of these has 8 bits in groups of inputs."""

Modules = Mapping[str, Sequence[Module | None]]
"""The modules of each packed tensor's parts; None for a part in floats."""


def fits(module: Module, format: QuantFormat) -> bool:
    """Return whether ``format`` holds the codes and scales of ``module``, except -128 where it ends at -127.

    MXFP4 blocks whose scales fp16 cannot hold are not checked.
    """
    if isinstance(module, Blocks):
        return format.name == NEAREST
    if not isinstance(module, Integers) or format.name not in EXACT or format.name not in BUILTIN:
        return False
    if format.minima is not None:
        return _fits_minima(module, format.minima)
    grid = format.grid(module.k)
    if grid is None:
        return False
    has_range = grid.low <= module.low + (module.bits == 8) and -module.low - 1 <= grid.high
    has_groups = module.group >= module.k or module.group % grid.group == 0
    return has_range and has_groups and module.is_symmetric and module.is_ordered and _has_scales(module, grid)


def _fits_minima(module: Integers, grid: MinimaGrid) -> bool:
    """Return whether each scale covers whole superblocks: sub-scales are then 1, and minima the zero points."""
    has_groups = module.group >= module.k or module.group % grid.superblock == 0
    if module.bits != 4 or not has_groups or not module.is_ordered or module.scale_type != np.float16:
        return False
    zeros = module.zeros()
    return zeros is None or int(zeros.min()) >= module.low


def _has_scales(module: Integers, grid: Grid) -> bool:
    return module.scale_type is not None and (module.scale_type == np.float16 or grid.scale == np.float32)


def holds(module: Module, format: str) -> bool:
    """Return whether the weight format named ``format`` holds ``module`` without loss, except for codes of -128."""
    return format == "f32" or (format in BUILTIN and fits(module, BUILTIN[format]))


def kept(module: Integers, grid: Grid, begin: int, rows: int) -> tuple[Quantized, int]:
    """Return rows of a fitting module, each scale repeated for every group of ``grid``, and the number of codes of
    -128.

    These become -127 if the grid ends there.
    """
    codes = module.codes()[begin : begin + rows]
    below = int(np.count_nonzero(codes < grid.low))
    if below:
        codes = np.maximum(codes, np.int8(grid.low))
    group = np.arange(grid.groups(module.k)) * grid.group // module.group
    scales = module.scales()[begin : begin + rows][:, group]
    return Quantized(np.ascontiguousarray(codes), np.ascontiguousarray(scales)), below


def kept_minima(module: Integers, grid: MinimaGrid, begin: int, rows: int) -> WithMinima:
    """Return rows of a fitting module: scale * (code - zero) as scale * code - scale * zero."""
    end = begin + rows
    block = np.arange(grid.superblocks(module.k)) * grid.superblock // module.group
    group = np.arange(grid.groups(module.k)) * grid.group // module.group
    scales = np.ascontiguousarray(module.scales()[begin:end][:, block])
    zeros = module.zeros()
    least = np.zeros((rows, module.groups), np.int16) if zeros is None else zeros[begin:end]
    minima = (least[:, group] - module.low).astype(np.uint8)
    codes = module.codes()[begin:end] - np.int8(module.low)
    return WithMinima(codes, scales, scales, np.ones_like(minima), minima)


def formats(layout: Layout, modules: Modules, choice: FormatChoice, lookup: FormatLookup) -> dict[str, str]:
    """Return the format of every tensor.

    By default a tensor keeps the checkpoint's precision; modules that its maker left in floats get 8 bits, and
    routers stay floats.
    """
    found = choice.for_model(layout, lookup)
    left = NEAREST if any(_is_finer(module) for stored in modules.values() for module in stored) else LEFT
    for spec in layout.tensors:
        if not choice.asks(spec.name):
            found[spec.name] = _nearest(spec, modules, found[spec.name], left)
        if any(modules[spec.name]):
            require_unturned(spec.name, lookup(found[spec.name]))
    return found


def foreseen(layout: Layout, scheme: Scheme | None, choice: FormatChoice, lookup: FormatLookup) -> dict[str, str]:
    """Return the format of every tensor of a checkpoint without weights, as far as its scheme tells.

    With experts in blocks, all experts are; which other modules are quantized only tensors show.
    """
    found = choice.for_model(layout, lookup)
    for spec in layout.tensors if scheme is not None and scheme.has_blocks else ():
        if not choice.asks(spec.name):
            found[spec.name] = NEAREST if spec.experts else _left(found[spec.name], LEFT)
    return found


def _is_finer(module: Module | None) -> bool:
    """Return whether the steps of a module are finer than LEFT's: 8 bits, with scales for less than a row."""
    return isinstance(module, Integers) and module.bits == 8 and module.group < module.k


def _left(planned: str, left: str) -> str:
    return ROUTER if planned == ROUTER else left


def _nearest(spec: TensorSpec, modules: Modules, planned: str, left: str) -> str:
    stored = modules[spec.name]
    if not any(stored):
        return _left(planned, left)
    return next((name for name in EXACT if all(one is not None and holds(one, name) for one in stored)), NEAREST)


def changes(layout: Layout, modules: Modules, formats: Mapping[str, str]) -> dict[str, str]:
    """Return a summary of tensors that are rounded again, by "stored type -> format"."""
    count: dict[str, int] = {}
    for spec in layout.tensors:
        for module in modules[spec.name]:
            if module is not None and not holds(module, formats[spec.name]):
                key = f"{module.label} -> {formats[spec.name]}"
                count[key] = count.get(key, 0) + 1
    return {key: f"{number} tensor{'s' if number > 1 else ''}" for key, number in sorted(count.items())}
