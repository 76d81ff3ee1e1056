"""Models in files of other engines: the face of a writer, and what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from infeng_core.files import reading
from infeng_core.formats.artifacts.manifest import is_native
from infeng_core.formats.model_readers import ReaderLookup, Source
from infeng_core.formats.packed_model import PackedModel


@dataclass(frozen=True)
class Export:
    """What an export made."""

    path: Path
    nbytes: int
    seconds: float
    formats: Mapping[str, str]  # type by tensor
    reused: bool = False


@dataclass(frozen=True)
class ExportPlan:
    """What an export would write: the type of each tensor, and the bytes of all."""

    formats: Mapping[str, str]
    nbytes: int


class ModelWriter(Protocol):
    """A writer of model files. Registered by name through the hook ``infeng_model_writers``."""

    @property
    def default(self) -> str:
        """The format of tensors where none is asked for."""

    def writes(self, path: Path) -> bool:
        """Return whether a file of this name is written by it."""

    def plan(self, source: Source, format: str) -> ExportPlan:
        """Return what ``write`` would write; raises what it raises."""

    def write(self, source: Source, destination: Path, format: str, *, force: bool, progress: bool) -> Export:
        """Write a model, whole or not at all; an existing file is replaced only with ``force``.

        Raises UsageError for an unknown format, ModelError for what the format cannot say, ResourceError.
        """


def open_source(source: Path, reader: ReaderLookup) -> Source:
    """Open a model that is to be exported, an engine-native directory among them; raises ModelError."""
    with reading(source):
        return PackedModel(source) if is_native(source) else reader(source).open(source)
