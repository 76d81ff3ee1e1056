"""Readers that return the weights of an adapter's files, which are packed here, and its packed form cached."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from infeng_core.api import AdapterError
from infeng_core.api.adapters import AdapterDtype, AdapterImage, AdapterReader
from infeng_core.api.engines import PackedAdapter
from infeng_core.api.formats import LoadedModel, ModelConfig
from infeng_peft.cached import load_through_cache
from infeng_peft.packing import pack
from infeng_peft.weights import AdapterWeights


class WeightsReader(ABC):
    """The base of a reader for the hook ``infeng_adapter_readers`` that leaves packing to this wheel."""

    @abstractmethod
    def recognizes(self, path: Path) -> bool:
        """Return whether the file or directory at ``path`` may be such an adapter, by its name or its first bytes."""

    @abstractmethod
    def files(self, path: Path) -> Sequence[Path]:
        """Return the files whose paths, sizes and times identify the adapter, so that it is packed once.

        Without files, it is packed at each load.
        """

    @abstractmethod
    def read(self, path: Path, config: ModelConfig) -> AdapterWeights:
        """Return the adapter's weights for a base of the shape ``config``; raises AdapterError."""

    def load(
        self, path: Path, model: LoadedModel, dtype: AdapterDtype, scale: float, cache_bytes: int
    ) -> PackedAdapter:
        """Return the adapter packed over ``model``, from the user's cache if it is there; raises AdapterError."""

        def packed() -> AdapterImage:
            return pack(self.read(path, model.config), model, dtype, scale)

        return load_through_cache(path, partial(self.files, path), model, dtype, scale, packed, cache_bytes)


def weights_of(reader: AdapterReader, path: Path, config: ModelConfig) -> AdapterWeights:
    """Return the weights that ``reader`` finds at ``path``; raises AdapterError if it only returns packed ones."""
    if not isinstance(reader, WeightsReader):
        raise AdapterError(f"{path}", "its plugin packs it and does not say what is in it", "run it as it is")
    return reader.read(path, config)
