"""The interface of a reader of adapter files."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from infeng_core.formats.adapters.packed import AdapterDtype, PackedAdapter
from infeng_core.formats.tensors import LoadedModel


class AdapterReader(Protocol):
    """A reader of adapter files. Registered by name through the hook ``infeng_adapter_readers``."""

    def recognizes(self, path: Path) -> bool:
        """Return whether the file or directory at ``path`` may be such an adapter, by its name or its first bytes."""

    def load(
        self, path: Path, model: LoadedModel, dtype: AdapterDtype, scale: float, cache_bytes: int
    ) -> PackedAdapter:
        """Return the adapter at ``path``, packed over ``model``; raises AdapterError.

        scale: a factor of alpha / r. cache_bytes: the most that packed adapters may take in the user's cache; 0: none
        is read or kept.
        """
