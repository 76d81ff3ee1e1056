"""The contents of an adapter as plain data: its tensors, with rank and scaling, and everything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from infeng_core.formats.adapters.packed import AdapterDtype
from infeng_core.formats.adapters.stacked import PanelFormat
from infeng_core.formats.adapters.tails import ROWS, Tails
from infeng_core.formats.quant import BUILTIN
from infeng_core.formats.rotation import SIZE

A_FORMAT: Mapping[AdapterDtype, PanelFormat] = {
    "f32": BUILTIN["f32"],
    "bf16": BUILTIN["bf16"],
    "int8": BUILTIN["int8-row"],
    "int8t4": Tails(),
}
"""The panels in which A is stored."""


def rank_multiple(dtype: AdapterDtype) -> int:
    """Return what the stored rank of a projection is a multiple of."""
    return ROWS if dtype == "int8t4" else 1


def stored_rank(dtype: AdapterDtype, rank: int) -> int:
    """Return the rank rows that are stored for a projection of ``rank``; those added are zeros."""
    multiple = rank_multiple(dtype)
    return -(-rank // multiple) * multiple


@dataclass(frozen=True, slots=True)
class PartSpec:
    """The contents for one projection."""

    rank: int = 0
    scaling: float = 1.0
    row_scale: bool = False
    bias: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the adapter leaves the projection unchanged."""
        return not (self.rank or self.row_scale or self.bias)

    def to_list(self) -> list[object]:
        """Return plain data."""
        return [self.rank, self.scaling, self.row_scale, self.bias]

    def scaled(self, scale: float) -> PartSpec:
        """Return the part with its product multiplied."""
        return replace(self, scaling=self.scaling * scale)


@dataclass(frozen=True)
class AdapterSpec:
    """The contents of an adapter; with the shapes of the base they determine the place of each byte."""

    dtype: AdapterDtype
    tensors: Mapping[str, tuple[PartSpec, ...]]  # in packed order; one spec for each part of the tensor
    embedding: PartSpec | None = None
    saved_tensors: Mapping[str, str] = field(default_factory=dict)  # name: weight format
    saved_vectors: tuple[str, ...] = ()
    rotated: Mapping[str, int] = field(default_factory=dict)  # tensor whose A is rotated like its inputs: the block
    invocation: tuple[int, ...] = ()  # tokens from which on it acts (aLoRA); () on all
    trained_tokens: tuple[int, ...] = ()  # whose rows of embeddings and head it replaces, by products of rank 1 each

    @property
    def fixed_scale(self) -> bool:
        """Whether the adapter cannot be rescaled after packing: its row scales and biases depend on the scale, and
        trained rows have none."""
        return bool(self.trained_tokens) or any(part.row_scale or part.bias for part in self.parts())

    @property
    def is_bound(self) -> bool:
        """Whether it is valid only over the base for which it was packed: DoRA, biases, trained rows, saved tensors."""
        return self.fixed_scale or bool(self.saved_tensors)

    def rank(self, tensor: str) -> int:
        """Return the stacked rank rows of all parts of a tensor."""
        return sum(part.rank for part in self.tensors[tensor])

    def scaled(self, scale: float) -> AdapterSpec:
        """Return the spec with every scaling multiplied."""
        if scale == 1.0:
            return self
        tensors = {name: tuple(part.scaled(scale) for part in parts) for name, parts in self.tensors.items()}
        embedding = None if self.embedding is None else self.embedding.scaled(scale)
        return replace(self, tensors=tensors, embedding=embedding)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "dtype": self.dtype,
            "tensors": {name: [part.to_list() for part in parts] for name, parts in self.tensors.items()},
            "embedding": None if self.embedding is None else self.embedding.to_list(),
            "saved_tensors": dict(self.saved_tensors),
            "saved_vectors": list(self.saved_vectors),
            **({"rotated": self._rotated()} if self.rotated else {}),
            **({"invocation": list(self.invocation)} if self.invocation else {}),
            **({"trained_tokens": list(self.trained_tokens)} if self.trained_tokens else {}),
        }

    def _rotated(self) -> list[str] | dict[str, int]:
        """Return a list if all blocks have 64 inputs, as they had before there were larger ones."""
        return list(self.rotated) if set(self.rotated.values()) == {SIZE} else dict(self.rotated)

    def parts(self) -> Iterator[PartSpec]:
        """Yield the contents for every projection, and for the embedding."""
        for parts in self.tensors.values():
            yield from parts
        if self.embedding is not None:
            yield self.embedding
