"""A packed adapter as the native core takes it: plain tuples of numbers and arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core import _native

if TYPE_CHECKING:
    from infeng_core.formats.adapters.packed import LoraPart, PackedAdapter


def place(program: _native.Program, adapter: PackedAdapter) -> _native.Adapter:
    """Copy ``adapter`` into memory of its own for ``program``; raises NativeError naming what does not fit."""
    tensors = [
        (name, tensor.rank, tensor.a, tensor.scaling, [_part(part) for part in tensor.parts])
        for name, tensor in adapter.tensors.items()
    ]
    embedding = adapter.embedding
    placed = None
    if embedding is not None:
        placed = (embedding.rank, embedding.a, embedding.scaling, _part(embedding.part))
    return program.adapter(
        adapter.dtype,
        tensors,
        embedding=placed,
        saved_tensors=[(name, tensor.native()) for name, tensor in adapter.saved_tensors.items()],
        saved_vectors=list(adapter.saved_vectors.items()),
    )


def _part(part: LoraPart) -> _native.AdapterPart:
    arrays = (part.b, part.b_scale, part.row_scale, part.bias)
    return (part.rank, part.u_column, part.first_panel, part.panel_step, part.panels, *arrays)
