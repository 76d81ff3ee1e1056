"""The weight format of each tensor of a GGUF: an exact one if possible, else the nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infeng_convert.api import NEAREST, require_unturned

from infeng_core.api.formats import BUILTIN, ROUTER, FormatChoice, FormatLookup, Layout, QuantFormat, TensorSpec
from infeng_gguf.types import TensorType

EXACT = ("int4-g32", "int4-a256", "int8-g32")
"""Formats that can hold a type exactly, small ones first."""

FLOATS = ("f32", "bf16")


def codes_fit(type: TensorType, format: QuantFormat, k: int) -> bool:
    """Return whether ``format`` holds the codes and fp16 scales of ``type`` exactly."""
    grid = format.grid(k) if format.name in EXACT else None
    return (
        grid is not None
        and type.codes is not None
        and grid.group == type.block
        and grid.low <= type.low
        and type.high <= grid.high
    )


def minima_fit(type: TensorType, format: QuantFormat) -> bool:
    """Return whether ``format`` holds the codes, sub-scales and minima of ``type`` exactly."""
    grid = format.minima
    return grid is not None and type.minima is not None and type.block % grid.superblock == 0


def holds(type: TensorType, format: str, k: int) -> bool:
    """Return whether the weight format named ``format`` holds ``type`` exactly."""
    if type.is_float:
        return format == "f32" or (format == "bf16" and type.name == "BF16")
    if format not in BUILTIN:
        return False
    used = BUILTIN[format]
    return format == "f32" or codes_fit(type, used, k) or minima_fit(type, used)


def formats(
    layout: Layout, types: Mapping[str, Sequence[TensorType]], choice: FormatChoice, lookup: FormatLookup
) -> dict[str, str]:
    """Return the format of every tensor. types: of its parts, by tensor.

    Without a request, a tensor keeps the file's precision: floats beside quantized tensors get NEAREST, except routers,
    which stay floats. A file with only floats follows ``choice``.
    """
    found = choice.for_model(layout, lookup)
    if not _has_integers(types):
        return found
    for spec in layout.tensors:
        stored = types[spec.name]
        is_left = all(type.is_float for type in stored)
        if not choice.asks(spec.name) and not (is_left and found[spec.name] == ROUTER):
            found[spec.name] = _nearest(spec, stored)
        if not is_left:
            require_unturned(spec.name, lookup(found[spec.name]))
    return found


def _has_integers(types: Mapping[str, Sequence[TensorType]]) -> bool:
    return any(not type.is_float for stored in types.values() for type in stored)


def _nearest(spec: TensorSpec, stored: Sequence[TensorType]) -> str:
    exact = [name for name in EXACT if all(holds(type, name, spec.k) for type in stored)]
    return exact[0] if exact else NEAREST


def changes(layout: Layout, types: Mapping[str, Sequence[TensorType]], formats: Mapping[str, str]) -> dict[str, str]:
    """Return the number of tensors, in words, by "type -> format", for types that their format rounds again.

    A file with only floats has none; floats that stay floats do not count.
    """
    count: dict[str, int] = {}
    for spec in layout.tensors if _has_integers(types) else ():
        for type in types[spec.name]:
            stays = type.is_float and formats[spec.name] in FLOATS
            if not stays and not holds(type, formats[spec.name], spec.k):
                key = f"{type.name} -> {formats[spec.name]}"
                count[key] = count.get(key, 0) + 1
    return {key: f"{number} tensor{'s' if number > 1 else ''}" for key, number in sorted(count.items())}
