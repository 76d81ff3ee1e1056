"""An engine-native directory as a source of exports: formats that can hold its integers get them unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_convert.interfaces.quantizers import Quantized
from infeng_convert.interfaces.readers import ModelSource as Source
from infeng_convert.interfaces.readers import ReaderLookup
from infeng_core.api.formats import (
    Layout,
    ModelConfig,
    PackedTensor,
    Part,
    QuantFormat,
    builtin_format,
    is_native,
    layout,
    read_native,
    reading,
)
from infeng_core.api.servers import side_files


class PackedModel:
    """An opened directory; its tensors are mapped, and read one after the other."""

    def __init__(self, directory: Path) -> None:
        """Open and check the files, but not their tensors' checksums; raises ModelError."""
        self.directory = directory
        self._model = read_native(directory, builtin_format, load="mmap")
        self.config: ModelConfig = self._model.config
        self.layout: Layout = layout(self.config)
        self._tensors = {part: self._model.tensors[spec.name] for spec in self.layout.tensors for part in spec.parts}
        self._vectors = {part: self._model.vectors[spec.name] for spec in self.layout.vectors for part in spec.parts}

    @property
    def largest(self) -> int:
        """Bytes of the largest tensor as ``array`` returns it."""
        return max(4 * part.rows * tensor.k for part, tensor in self._tensors.items())

    def array(self, part: Part) -> NDArray[Any]:
        """Return the rows of ``part``, (rows, k) or (rows,) float32."""
        if part in self._vectors:
            values: NDArray[np.float32] = self._vectors[part][part.columns()]
            return values
        tensor = self._tensors[part]
        place = {"first_panel": part.first_panel, "panel_step": part.panel_step}
        return tensor.quant.unpack(tensor.buffer, tensor.offset, part.panels, tensor.k, **place)[: part.rows]

    def kept(self, part: Part, format: QuantFormat) -> Quantized | None:
        """Return the codes of ``part``, with a scale for each group of ``format``, if the format can hold them; else
        None."""
        tensor = self._tensors[part]
        times = _times(tensor, format)
        if times == 0:
            return None
        place = {"first_panel": part.first_panel, "panel_step": part.panel_step}
        codes, scales = tensor.quant.unpack_codes(tensor.buffer, tensor.offset, part.panels, tensor.k, **place)
        scales = scales[: part.rows]
        if not np.isfinite(scales).all():
            return None  # a damaged file: reading the values reports it
        grid = format.grid(tensor.k)
        assert grid is not None
        return Quantized(codes[: part.rows], scales.repeat(times, axis=1)[:, : grid.groups(tensor.k)])

    def place(self, part: Part) -> str:
        """Return "directory: tensor name" for errors."""
        return f"{self.directory}: tensor {part.source}"

    def side_files(self) -> dict[str, bytes]:
        """Return the configuration and tokenizer files, contents by name."""
        return side_files(self.directory)


def _times(tensor: PackedTensor, format: QuantFormat) -> int:
    """Return how many groups of ``format`` make up each group of a tensor; 0 if the format cannot hold its codes."""
    own, wanted = tensor.quant.grid(tensor.k), format.grid(tensor.k)
    if own is None or wanted is None or own.scale != wanted.scale or own.group % wanted.group:
        return 0
    return own.group // wanted.group if wanted.low <= own.low and own.high <= wanted.high else 0


def open_source(source: Path, reader: ReaderLookup) -> Source:
    """Open a model that is to be exported, an engine-native directory among them; raises ModelError."""
    with reading(source):
        return PackedModel(source) if is_native(source) else reader(source).open(source)
