"""What a model is converted from: a Hugging Face directory, in floats or quantized, or a GGUF file, behind one face."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from infeng_core.files import read_bytes
from infeng_core.formats import huggingface
from infeng_core.formats.choice import FormatChoice
from infeng_core.formats.gguf.checkpoint import GgufCheckpoint
from infeng_core.formats.gguf.file import files_of
from infeng_core.formats.hfcheckpoint import FloatCheckpoint
from infeng_core.formats.quant import FormatLookup, QuantFormat
from infeng_core.formats.quantized.checkpoint import QuantizedCheckpoint
from infeng_core.formats.quantizers import Kept
from infeng_core.models.config import ModelConfig
from infeng_core.models.weights import Layout, Part


class Source(Protocol):
    """A model whose tensors can be read one by one: checkpoints, and engine-native directories that are exported."""

    directory: Path
    config: ModelConfig
    layout: Layout

    @property
    def largest(self) -> int:
        """Bytes of the largest tensor as ``array`` returns it."""

    def array(self, part: Part) -> NDArray[Any]:
        """Return the tensor of ``part``, (rows, k) or (rows,), as float32, float16 or, holding bf16, uint16."""

    def kept(self, part: Part, format: QuantFormat) -> Kept | None:
        """Return the source's own codes and scales where ``format`` stores them as they are; else None."""

    def place(self, part: Part) -> str:
        """Return "file: tensor name" for errors."""

    def side_files(self) -> dict[str, bytes]:
        """Return the configuration and tokenizer files that a converted model keeps, contents by name."""


class Checkpoint(Source, Protocol):
    """An opened model whose tensors are all there, in the right shapes."""

    def name(self, part: Part) -> str:
        """Return the name under which the checkpoint holds ``part``, as transformers spells it."""

    def formats(self, choice: FormatChoice, lookup: FormatLookup) -> dict[str, str]:
        """Return the weight format of every tensor."""

    def changes(self, formats: Mapping[str, str]) -> dict[str, str]:
        """Return what was quantized and is rounded again in ``formats``: {"Q4_K -> int8-row": "24 tensors"}."""

    def stored(self) -> dict[str, int]:
        """Return how many tensors there are of each type."""


def open_checkpoint(source: Path) -> Checkpoint:
    """Open the directory or file ``source``; raises ModelError."""
    if source.is_file():
        return GgufCheckpoint(source)
    scheme = huggingface.read_scheme(source)
    return FloatCheckpoint(source) if scheme is None else QuantizedCheckpoint(source, scheme)


def plan(source: Path, choice: FormatChoice, lookup: FormatLookup) -> tuple[ModelConfig, dict[str, str]]:
    """Return a model's sizes and the format that each tensor would have; raises ModelError.

    Of a directory in floats the configuration is enough; the weights need not be there.
    """
    if source.is_file() or huggingface.read_scheme(source) is not None:
        checkpoint = open_checkpoint(source)
        return checkpoint.config, checkpoint.formats(choice, lookup)
    config = huggingface.read_config(source)
    return config, choice.for_model(config, lookup)


def has_weights(source: Path) -> bool:
    """Return whether there is more than a configuration; raises ModelError for weights in a form that is not read."""
    if source.is_file() or any(source.glob("*.safetensors")) or (source / huggingface.INDEX).exists():
        return True
    huggingface.refuse_other_formats(source)
    return huggingface.read_scheme(source) is not None


def weight_files(source: Path) -> list[Path]:
    """Return the files that hold weights, without opening them; raises ModelError where there are none."""
    return files_of(source) if source.is_file() else huggingface.weight_files(source)


def small_files(source: Path) -> dict[str, bytes]:
    """Return the contents of a directory's other files by name; a GGUF has none."""
    if source.is_file():
        return {}
    index = source / huggingface.INDEX
    return huggingface.side_files(source) | ({huggingface.INDEX: read_bytes(index)} if index.is_file() else {})
