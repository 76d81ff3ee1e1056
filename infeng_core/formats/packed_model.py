"""An engine-native directory as a source of exports: a format that can hold its integers gets them as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.huggingface import side_files
from infeng_core.formats.quant import QuantFormat, builtin_format
from infeng_core.formats.quantizers import Quantized
from infeng_core.formats.tensors import PackedTensor
from infeng_core.models.config import ModelConfig
from infeng_core.models.weights import Layout, Part, layout


class PackedModel:
    """An opened directory; its tensors are mapped, and read one after the other."""

    def __init__(self, directory: Path) -> None:
        """Open and check the files, their tensors' checksums excepted; raises ModelError."""
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
        """Return the codes of ``part``, with a scale for each group of ``format``, if that can hold them; else None."""
        tensor = self._tensors[part]
        times = _times(tensor, format)
        if times == 0:
            return None
        place = {"first_panel": part.first_panel, "panel_step": part.panel_step}
        codes, scales = tensor.quant.unpack_codes(tensor.buffer, tensor.offset, part.panels, tensor.k, **place)
        scales = scales[: part.rows]
        if not np.isfinite(scales).all():
            return None  # a damaged file: where the values are looked at, it is said
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
    """Return how many groups of ``format`` each group of a tensor is; 0 where its codes are no codes of it."""
    own, wanted = tensor.quant.grid(tensor.k), format.grid(tensor.k)
    if own is None or wanted is None or own.scale != wanted.scale or own.group % wanted.group:
        return 0
    return own.group // wanted.group if wanted.low <= own.low and own.high <= wanted.high else 0
