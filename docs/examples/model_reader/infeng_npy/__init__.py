"""A reader of model files: a folder with a ``.npy`` file for each tensor, named as transformers names it, float32 or
float16, beside ``model.json``, which holds what config.json holds. ``infeng run FOLDER``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from infeng_convert.api import Checkpoint, Description, Kept, ModelFiles, ModelReader, parse_config
from numpy.typing import NDArray

from infeng_core.api import ModelError, hookimpl
from infeng_core.api.formats import FormatChoice, FormatLookup, ModelConfig, Part, QuantFormat, layout

CONFIG = "model.json"
DTYPES = ("float32", "float16")
REMEDY = "write the folder again"


def read_config(path: Path) -> ModelConfig:
    """Return the configuration of a folder; raises ModelError."""
    file = path / CONFIG
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}", f"cannot be read: {error}", REMEDY) from error
    return parse_config(data, file)


class NpyCheckpoint:
    """An opened folder. Arrays are mapped; the core asks for one tensor at a time."""

    def __init__(self, path: Path) -> None:
        """Check that all tensors are there, in their shapes; raises ModelError."""
        self.directory, self.config = path, read_config(path)
        self.layout = layout(self.config)
        self._arrays = {part: self._open(part, spec.k) for spec in self.layout.tensors for part in spec.parts}
        self._arrays |= {part: self._open(part, 0) for spec in self.layout.vectors for part in spec.parts}

    def _open(self, part: Part, k: int) -> NDArray[Any]:
        """Return the array of the tensor that holds ``part``, over ``k`` inputs; 0: a vector."""
        file = self.directory / f"{self.name(part)}.npy"
        try:
            array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ModelError(f"{file}", f"cannot be read: {error}", REMEDY) from error
        if array.shape != part.shape(k) or array.dtype.name not in DTYPES:
            why = f"is {array.dtype} {array.shape}, {part.shape(k)} of {' or '.join(DTYPES)} is expected"
            raise ModelError(f"{file}", why, REMEDY)
        return array

    @property
    def largest(self) -> int:
        """Bytes of the largest tensor."""
        return max(array.nbytes for array in self._arrays.values())

    def name(self, part: Part) -> str:
        """Return what transformers calls the tensor of ``part``: a tied head is the embedding."""
        is_there = part.alternative is None or (self.directory / f"{part.source}.npy").exists()
        return part.source if is_there else str(part.alternative)

    def place(self, part: Part) -> str:
        """Return the file of ``part``, for errors."""
        return f"{self.directory / self.name(part)}.npy"

    def array(self, part: Part) -> NDArray[Any]:
        """Return the rows of ``part``, (rows, k) or (rows,)."""
        return np.array(self._arrays[part][part.begin : part.begin + part.rows])

    def kept(self, part: Part, format: QuantFormat) -> Kept | None:
        """Return nothing: floats have no codes to keep."""
        return None

    def formats(self, choice: FormatChoice, lookup: FormatLookup) -> dict[str, str]:
        """Return the weight format of every tensor: as the engine's settings say."""
        return choice.for_model(self.config, lookup)

    def changes(self, formats: Mapping[str, str]) -> dict[str, str]:
        """Return nothing: floats are rounded once."""
        return {}

    def stored(self) -> dict[str, int]:
        """Return how many tensors there are of each type."""
        return dict(Counter(array.dtype.name for array in self._arrays.values()))

    def side_files(self) -> dict[str, bytes]:
        """Return what a converted model keeps: the configuration, and the tokenizer where there is one."""
        names = {"config.json": CONFIG, "tokenizer.json": "tokenizer.json"}
        files = {name: self.directory / own for name, own in names.items()}
        return {name: file.read_bytes() for name, file in files.items() if file.is_file()}


class NpyReader:
    """What the hook gives."""

    kind = "NumPy folder"

    def supports(self) -> dict[str, list[str]]:
        """Return the types of arrays."""
        return {"types": list(DTYPES)}

    def recognizes(self, path: Path) -> bool:
        """Return whether a folder holds a model.json."""
        return (path / CONFIG).is_file()

    def files(self, path: Path) -> ModelFiles:
        """Return the arrays, and the configuration with its contents."""
        return ModelFiles(sorted(path.glob("*.npy")), {CONFIG: (path / CONFIG).read_bytes()})

    def has_weights(self, path: Path) -> bool:
        """Return whether there is an array."""
        return any(path.glob("*.npy"))

    def describe(self, path: Path) -> Description:
        """Return the configuration."""
        tokenizer = path / "tokenizer.json"
        return Description(read_config(path), tokenizer.stat().st_size if tokenizer.is_file() else 0)

    def open(self, path: Path) -> Checkpoint:
        """Open a folder; raises ModelError."""
        return NpyCheckpoint(path)


@hookimpl(optionalhook=True)
def infeng_model_readers() -> dict[str, ModelReader]:
    """Return the reader."""
    return {"npy": NpyReader()}
