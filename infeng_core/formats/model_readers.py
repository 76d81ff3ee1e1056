"""What a model is read from, and the face of a reader of model files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.quant import FormatLookup, QuantFormat
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


@dataclass(frozen=True)
class ModelFiles:
    """What a model lies in: equal files are the same model, so that its conversion is made once."""

    weights: Sequence[Path]  # count by place, size and time of change; the first stands for all
    small: Mapping[str, bytes] = field(default_factory=dict)  # count by their contents, by name
    has_own_types: bool = False  # whether weights keep the types that they are stored in where nothing is asked for
    rules: int = 0  # counts changes of what the reader makes of the same files


@dataclass(frozen=True)
class Description:
    """A model as its metadata tells it."""

    config: ModelConfig | None  # None: it is an adapter
    tokenizer_bytes: int = 0  # of its file; 0: it has none
    has_template: bool = False
    method: str = ""  # by which others quantized it: "GPTQ"
    formats: Callable[[FormatChoice, FormatLookup], dict[str, str]] | None = None
    """The format of every tensor where the weights are not there; None: only they tell."""


class ModelReader(Protocol):
    """A reader of model files. Registered by name through the hook ``infeng_model_readers``."""

    @property
    def kind(self) -> str:
        """What people call such a model: "Hugging Face"."""

    def supports(self) -> dict[str, list[str]]:
        """Return what of this kind is read, for ``infeng models``, such as {"types": ["F16", "F32"]}."""

    def recognizes(self, path: Path) -> bool:
        """Return whether the file or directory at ``path`` is of this kind, by its name or how it begins."""

    def files(self, path: Path) -> ModelFiles:
        """Return the files of the model at ``path``, none of them opened but small ones; raises ModelError."""

    def has_weights(self, path: Path) -> bool:
        """Return whether there is more than a configuration; raises ModelError for weights that are not read."""

    def describe(self, path: Path) -> Description:
        """Return what the metadata of the model at ``path`` tells; raises ModelError."""

    def open(self, path: Path) -> Checkpoint:
        """Open the model at ``path`` and check that it is whole; no weight is read yet. Raises ModelError."""


ReaderLookup = Callable[[Path], ModelReader]
"""From a path to the reader of what lies there; raises UsageError where there is none."""
