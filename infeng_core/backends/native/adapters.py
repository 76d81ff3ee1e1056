"""A packed adapter in the form that the native core loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.models.ops import panel_columns

if TYPE_CHECKING:
    from infeng_core.formats.adapters.packed import LoraPart, PackedAdapter


class HeadNorms(NamedTuple):
    """The norms of q and k that are fused into a rope; an adapter replaces both together."""

    names: tuple[str, str]  # "layers.0.q_norm", "layers.0.k_norm"
    own: tuple[NDArray[np.float32], NDArray[np.float32]]  # of the base, ``offset`` added
    offset: float

    def joined(self, found: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return both vectors, the adapter's in place of the base's, each padded to a multiple of 16 values."""
        both = np.zeros((2, panel_columns(len(self.own[0]))), np.float32)
        for row, name, own in zip(both, self.names, self.own, strict=True):
            row[: len(own)] = found[name] + np.float32(self.offset) if name in found else own
        return both.reshape(-1)


def place(program: _native.Program, adapter: PackedAdapter, head_norms: Mapping[str, HeadNorms]) -> _native.Adapter:
    """Copy ``adapter`` into memory of its own for ``program``; raises NativeError naming the part that does not fit.

    head_norms: the norms of the program's ropes, under the names of both modules.
    """
    tensors = [
        _native.AdapterTensor(name, tensor.rank, tensor.a, tensor.scaling, [_part(part) for part in tensor.parts])
        for name, tensor in adapter.tensors.items()
    ]
    embedding = adapter.embedding
    placed = None
    if embedding is not None:
        placed = _native.AdapterEmbedding(embedding.rank, embedding.a, embedding.scaling, _part(embedding.part))
    vectors = dict(adapter.saved_vectors)
    for module, norms in head_norms.items():
        if found := {name: vectors.pop(name) for name in norms.names if name in vectors}:
            vectors[module] = norms.joined(found)
    return program.adapter(
        adapter.dtype,
        tensors,
        embedding=placed,
        saved_tensors=[(name, tensor.native()) for name, tensor in adapter.saved_tensors.items()],
        saved_vectors=list(vectors.items()),
    )


def _part(part: LoraPart) -> _native.AdapterPart:
    arrays = (part.b, part.b_scale, part.row_scale, part.bias)
    return _native.AdapterPart(part.rank, part.u_column, part.first_panel, part.panel_step, part.panels, *arrays)
