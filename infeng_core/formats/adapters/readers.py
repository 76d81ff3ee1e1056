"""The interface of a reader of adapter files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from infeng_core.formats.adapters.weights import AdapterWeights
from infeng_core.models.config import ModelConfig


class AdapterReader(Protocol):
    """A reader of adapter files. Registered by name through the hook ``infeng_adapter_readers``."""

    def recognizes(self, path: Path) -> bool:
        """Return whether the file or directory at ``path`` may be such an adapter, by its name or its first bytes."""

    def files(self, path: Path) -> Sequence[Path]:
        """Return the files whose paths, sizes and times identify the adapter, so that it is packed once.

        Without files, it is packed at each load.
        """

    def read(self, path: Path, config: ModelConfig) -> AdapterWeights:
        """Return the adapter's weights for a base of the shape ``config``; raises AdapterError."""


def recognizing(path: Path, readers: Iterable[tuple[str, AdapterReader]]) -> AdapterReader | None:
    """Return the first of ``readers`` that recognizes ``path``, or None."""
    return next((reader for _, reader in readers if reader.recognizes(path)), None)
