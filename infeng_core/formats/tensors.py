"""A loaded model: packed tensors and vectors in memory, ready for a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.formats.quant import QuantFormat
from infeng_core.models.config import ModelConfig
from infeng_core.models.weights import Part, layout


@dataclass(frozen=True)
class PackedTensor:
    """``panels`` panels of 16 outputs over ``k`` inputs, from byte ``offset`` of ``buffer`` on (64-byte aligned)."""

    name: str
    format: str
    n: int  # outputs; joined tensors count every column
    k: int
    panels: int
    panel_bytes: int
    buffer: Any = field(repr=False)
    offset: int
    quant: QuantFormat = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all panels."""
        return self.panels * self.panel_bytes

    def holding(self, panels: NDArray[np.uint8], name: str) -> PackedTensor:
        """Return a tensor of this size and format with other contents."""
        return replace(self, name=name, buffer=panels, offset=0)

    def native(self) -> _native.Weight:
        """Return the weight as the native core takes it; the result keeps the buffer alive."""
        stored = self.quant.stored
        return _native.Weight(stored, self.n, self.k, self.panels, self.panel_bytes, self.buffer, self.offset)

    def dequantize(self) -> NDArray[np.float32]:
        """Return (n, k) float32, the values that the kernels compute with; never rotated."""
        return self.quant.unpack(self.buffer, self.offset, self.panels, self.k)[: self.n]


Weights = Iterator[tuple[str, PackedTensor | NDArray[np.float32]]]
"""Packed tensors and vectors, each with its name."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, as backends need it.

    ``vectors`` are float32, named and padded as ``infeng_core.models.weights`` says. ``source`` is the directory that
    was read, ``tokenizer_dir`` holds tokenizer.json. ``formats_used`` maps each tensor to its format, ``nbytes``
    counts tensors and vectors, ``id`` is equal for equal contents, ``quantizer`` is the one that chose the integers.
    ``conversion_seconds`` is the time of the conversion, 0 if it was cached. ``stream`` reads the weights of a model
    whose files are mapped; without it they are in memory.
    """

    config: ModelConfig
    source: Path
    tensors: Mapping[str, PackedTensor] = field(repr=False)
    vectors: Mapping[str, NDArray[np.float32]] = field(repr=False)
    tokenizer_dir: Path
    formats_used: Mapping[str, str] = field(repr=False)
    nbytes: int
    id: str
    quantizer: str = "nearest"
    conversion_seconds: float = 0.0
    stream: Callable[[], Weights] | None = field(default=None, repr=False)

    def weights(self) -> Weights:
        """Yield every tensor and vector with its name.

        If the model is streamed, each is read, verified and checked when it is asked for, in memory that is freed with
        the last reference to it. Raises ModelError then.
        """
        if self.stream is not None:
            yield from self.stream()
            return
        yield from self.tensors.items()
        yield from self.vectors.items()

    def matrix(self, source: str) -> NDArray[np.float32]:
        """Return the values of one checkpoint tensor as packed, such as "model.layers.0.self_attn.k_proj.weight".

        (rows, k) float32, or (rows,) for a vector, without padding; experts are stacked along the rows, outputs being
        rows in any case. Raises KeyError for an unknown name.
        """
        for spec in layout(self.config).tensors:
            parts = [part for part in spec.parts if source in (part.source, part.alternative)]
            if parts:
                packed = self.tensors[spec.name]
                joined = packed.quant.unpack(packed.buffer, packed.offset, packed.panels, packed.k)
                return _whole(parts, joined)
        for vector in layout(self.config).vectors:
            parts = [part for part in vector.parts if source == part.source]
            if parts:
                return _whole(parts, self.vectors[vector.name])
        raise KeyError(source)


def _whole(parts: Sequence[Part], joined: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows of a checkpoint's tensor; all of its ``parts`` are in ``joined``."""
    found = np.empty((parts[0].source_rows, *joined.shape[1:]), np.float32)
    for part in parts:
        found[part.span] = joined[part.columns()]
    return found
