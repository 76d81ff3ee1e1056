"""The interface of a writer of models in other engines' files, and its input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from infeng_convert.interfaces.readers import ModelSource


@dataclass(frozen=True)
class Export:
    """The result of an export."""

    path: Path
    nbytes: int
    seconds: float
    formats: Mapping[str, str]  # type by tensor
    reused: bool = False


@dataclass(frozen=True)
class ExportPlan:
    """The plan of an export: the type of each tensor, and the total bytes."""

    formats: Mapping[str, str]
    nbytes: int


class ModelWriter(Protocol):
    """A writer of model files. Registered by name through the hook ``infeng_model_writers``."""

    @property
    def default(self) -> str:
        """The default format of tensors."""

    def writes(self, path: Path) -> bool:
        """Return whether this writer writes files of this name."""

    def plan(self, source: ModelSource, format: str) -> ExportPlan:
        """Return the plan of ``write``; raises its errors."""

    def write(self, source: ModelSource, destination: Path, format: str, *, force: bool, progress: bool) -> Export:
        """Write a model, completely or not at all; an existing file is replaced only with ``force``.

        Raises UsageError for an unknown format, ModelError for a model that the format cannot express, ResourceError.
        """
