"""A low-rank adapter in memory, packed for the kernels: the input of ``Executable.load_adapter``.

One linear layer's ``y = x W^T``, W (n, k), becomes ``y = (x W^T + (x A^T * scaling) B^T) * row_scale + bias``. The
projections that share an input (q, k and v; gate and up) lie in one packed tensor, and their A's are stacked by row
without gaps, so that one pass over x computes ``u = x A^T * scaling`` of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from infeng_core.formats.tensors import PackedTensor

AdapterDtype = Literal["f32", "bf16", "int8", "int8t4"]
"""Storage of A and B; an engine uses one for all of its adapters."""


@dataclass(frozen=True, slots=True)
class LoraPart:
    """The change to one projection: outputs ``panels`` panels, placed as ``models.weights.Part`` places them.

    It reads columns [u_column, u_column + rank) of the tensor's u. Rank 0: only ``row_scale`` or ``bias``.
    """

    rank: int
    u_column: int
    first_panel: int
    panel_step: int
    panels: int
    b: NDArray[Any] = field(repr=False)  # (panels, rank, 16): float32, bf16 in uint16, or int8; int8t4: ``tails``
    b_scale: NDArray[np.uint16] | None = field(default=None, repr=False)  # (panels * 16,) bf16, with int8 and int8t4
    row_scale: NDArray[np.float32] | None = field(default=None, repr=False)  # (panels * 16,), DoRA; 1 on padding
    bias: NDArray[np.float32] | None = field(default=None, repr=False)  # (panels * 16,), added last; 0 on padding


@dataclass(frozen=True, slots=True)
class LoraTensor:
    """The change to one packed tensor; ``rank`` counts the stacked rank rows of all parts."""

    rank: int
    a: NDArray[np.uint8] = field(repr=False)  # as ``stacked`` packs it, in the panels of ``A_FORMAT``
    scaling: NDArray[np.float32] = field(repr=False)  # (rank padded to 16,), 0 on padding
    parts: tuple[LoraPart, ...]


@dataclass(frozen=True, slots=True)
class LoraEmbedding:
    """The change to embeddings: ``row(id) += (a[id] * scaling) B^T``; ``part`` covers the hidden width."""

    rank: int
    a: NDArray[np.float32] = field(repr=False)  # (vocab, rank)
    scaling: float
    part: LoraPart


@dataclass(frozen=True)
class PackedAdapter:
    """A packed adapter, as backends need it.

    ``tensors`` is keyed by packed tensor: "layers.0.qkv_proj", and "lm_head" even if the head is tied.
    ``saved_tensors`` ("embed", "lm_head") and ``saved_vectors`` ("norm", "layers.0.attn_norm") replace the base's
    while a row uses this adapter; tensors are packed in the base's format, vectors are as long as the base's. Equal
    ``id`` means equal outputs over the base with the id ``base``.
    """

    id: str
    base: str
    dtype: AdapterDtype
    source: Path
    tensors: Mapping[str, LoraTensor] = field(repr=False)
    embedding: LoraEmbedding | None = field(default=None, repr=False)
    saved_tensors: Mapping[str, PackedTensor] = field(default_factory=dict, repr=False)
    saved_vectors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict, repr=False)
    base_name: str = ""  # the model that the adapter names as its base
    reach: float = 0.0  # the largest magnitude that it may add to a weight of the base
    invocation: tuple[int, ...] = ()  # aLoRA: it acts from the last occurrence of these tokens in a prompt on
    trained_tokens: tuple[int, ...] = ()  # whose rows of embeddings and head it replaces

    @property
    def stacked_rank(self) -> int:
        """The most stacked rank rows, padded to 16, of any tensor or of the embeddings."""
        embedding = 0 if self.embedding is None else -(-self.embedding.rank // 16) * 16
        return max(embedding, *(tensor.scaling.size for tensor in self.tensors.values()), 0)

    @property
    def is_dora(self) -> bool:
        """Whether outputs are rescaled."""
        return any(part.row_scale is not None for tensor in self.tensors.values() for part in tensor.parts)

    @property
    def is_whole(self) -> bool:
        """Whether it rescales, shifts or replaces the base's output, so that its weight can only be 1."""
        parts = [part for tensor in self.tensors.values() for part in tensor.parts]
        is_shifted = any(part.bias is not None for part in parts)
        return self.is_dora or self.saves_modules or bool(self.trained_tokens) or is_shifted

    @property
    def saves_modules(self) -> bool:
        """Whether it replaces modules of the base, so that no other such adapter can be combined with it."""
        return bool(self.saved_tensors or self.saved_vectors)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = sum(array.nbytes for array in self._arrays())
        return arrays + sum(tensor.nbytes for tensor in self.saved_tensors.values())

    def _arrays(self) -> Iterator[NDArray[Any]]:
        for tensor in self.tensors.values():
            yield from (tensor.a, tensor.scaling)
            for part in tensor.parts:
                yield from _part_arrays(part)
        if self.embedding is not None:
            yield self.embedding.a
            yield from _part_arrays(self.embedding.part)
        yield from self.saved_vectors.values()


def _part_arrays(part: LoraPart) -> Iterator[NDArray[Any]]:
    yield from (array for array in (part.b, part.b_scale, part.row_scale, part.bias) if array is not None)
