"""The interface of a reader of model files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from infeng_convert.interfaces.quantizers import Kept
from infeng_core.api.formats import FormatChoice, FormatLookup, Layout, ModelConfig, Part, QuantFormat


class ModelSource(Protocol):
    """A model whose tensors are read one by one: a checkpoint, or an engine-native directory for export."""

    directory: Path
    config: ModelConfig
    layout: Layout

    @property
    def largest(self) -> int:
        """Bytes of the largest tensor as ``array`` returns it."""

    def array(self, part: Part) -> NDArray[Any]:
        """Return the tensor of ``part``, (rows, k) or (rows,), as float32, float16 or, holding bf16, uint16."""

    def kept(self, part: Part, format: QuantFormat) -> Kept | None:
        """Return the source's own codes and scales if ``format`` stores them unchanged; else None."""

    def place(self, part: Part) -> str:
        """Return "file: tensor name" for errors."""

    def side_files(self) -> dict[str, bytes]:
        """Return the configuration and tokenizer files that a converted model keeps, contents by name."""


class Checkpoint(ModelSource, Protocol):
    """An opened model whose tensors are all there, in the right shapes."""

    def name(self, part: Part) -> str:
        """Return the name under which the checkpoint holds ``part``, as transformers spells it."""

    def formats(self, choice: FormatChoice, lookup: FormatLookup) -> dict[str, str]:
        """Return the weight format of every tensor."""

    def changes(self, formats: Mapping[str, str]) -> dict[str, str]:
        """Return a summary of quantized tensors that ``formats`` round again: {"Q4_K -> int8-row": "24 tensors"}."""

    def stored(self) -> dict[str, int]:
        """Return the number of tensors of each type."""


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model: equal files are the same model, which is converted once."""

    weights: Sequence[Path]  # count by path, size and modification time; the first stands for all
    small: Mapping[str, bytes] = field(default_factory=dict)  # count by contents, by name
    has_own_types: bool = False  # whether weights keep their stored types by default
    rules: int = 0  # raised whenever the reader makes other bytes of the same files


@dataclass(frozen=True)
class Description:
    """The metadata of a model."""

    config: ModelConfig | None  # None: an adapter
    tokenizer_bytes: int = 0  # of its file; 0: there is none
    has_template: bool = False
    method: str = ""  # method of an earlier quantization: "GPTQ"
    formats: Callable[[FormatChoice, FormatLookup], dict[str, str]] | None = None
    """The format of every tensor if the weights are absent; None if only the weights tell."""


class ModelReader(Protocol):
    """A reader of model files. Registered by name through the hook ``infeng_model_readers``."""

    @property
    def kind(self) -> str:
        """The common name of the kind: "Hugging Face"."""

    def supports(self) -> dict[str, list[str]]:
        """Return the supported variants for ``infeng models``, such as {"types": ["F16", "F32"]}."""

    def recognizes(self, path: Path) -> bool:
        """Return whether the file or directory at ``path`` is of this kind, by its name or its first bytes."""

    def files(self, path: Path) -> ModelFiles:
        """Return the files of the model at ``path``, of which only small ones are opened; raises ModelError."""

    def has_weights(self, path: Path) -> bool:
        """Return whether there are weights, not only a configuration; raises ModelError for weights of unsupported
        formats."""

    def describe(self, path: Path) -> Description:
        """Return the metadata of the model at ``path``; raises ModelError."""

    def open(self, path: Path) -> Checkpoint:
        """Open the model at ``path`` and check that it is complete; no weight is read yet. Raises ModelError."""


ReaderLookup = Callable[[Path], ModelReader]
"""Returns the reader for a path; raises UsageError if there is none."""
