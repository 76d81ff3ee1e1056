"""A checkpoint of random weights without files: each matrix is drawn when it is packed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from infeng_convert.api import Quantized, parse_config
from numpy.typing import NDArray

from infeng_core.api.formats import FormatChoice, FormatLookup, Part, QuantFormat, layout

POOL = (1 << 22) + 39  # values; a prime, so that rows of a matrix begin at different places of the pool
DEVIATION = 0.02


class Drawn:
    """A random ``Checkpoint`` without files. A matrix's name gives its beginning in one pool of values."""

    def __init__(self, name: str, config: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Draw the pool. config: of config.json. files: side files of the converted model, contents by name."""
        self.directory = Path(name)
        self.config = parse_config(config, f"{name}: config.json")
        self.layout = layout(self.config)
        self._files = dict(files)
        self._vectors = {part for vector in self.layout.vectors for part in vector.parts}
        self._columns = {part: spec.k for spec in self.layout.tensors for part in spec.parts}
        values = np.random.default_rng(0).standard_normal(POOL, np.float32) * np.float32(DEVIATION)
        self._pool = values.astype(np.float16)

    @property
    def largest(self) -> int:
        """Bytes of the largest matrix."""
        return max(2 * part.rows * k for part, k in self._columns.items())

    def array(self, part: Part) -> NDArray[Any]:
        """Return a matrix, (rows, k), or a vector of ones, (rows,), float16."""
        if part in self._vectors:
            return np.ones(part.rows, np.float16)
        values = np.empty(part.rows * self._columns[part], np.float16)
        at, filled = zlib.crc32(f"{part.source}[{part.begin}]".encode()) % POOL, 0
        while filled < values.size:
            count = min(values.size - filled, POOL - at)
            values[filled : filled + count] = self._pool[at : at + count]
            at, filled = 0, filled + count
        return values.reshape(part.rows, -1)

    def kept(self, part: Part, format: QuantFormat) -> Quantized | None:
        """Return None: the checkpoint is not quantized."""
        return None

    def place(self, part: Part) -> str:
        """Return the name of a matrix for errors."""
        return f"{self.directory}: {part.source}"

    def side_files(self) -> dict[str, bytes]:
        """Return the files that a converted model keeps."""
        return self._files

    def name(self, part: Part) -> str:
        """Return the name of a matrix."""
        return part.source

    def formats(self, choice: FormatChoice, lookup: FormatLookup) -> dict[str, str]:
        """Return the format of every tensor."""
        return choice.for_model(self.config, lookup)

    def changes(self, formats: Mapping[str, str]) -> dict[str, str]:
        """Return {}: no tensor is rounded twice."""
        return {}

    def stored(self) -> dict[str, int]:
        """Return {}: no tensor is stored."""
        return {}
