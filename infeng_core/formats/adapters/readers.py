"""The interface of a reader of adapter files, and the core's reader of PEFT directories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from infeng_core.errors import ModelError
from infeng_core.files import model_file
from infeng_core.formats.adapters.peft import WEIGHTS_FILE, is_peft, read_peft
from infeng_core.formats.adapters.peft_config import CONFIG_FILE
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


class PeftReader:
    """The reader of directories that PEFT saved."""

    def recognizes(self, path: Path) -> bool:
        """Return whether a directory holds, or should hold, a PEFT adapter."""
        return is_peft(path)

    def files(self, path: Path) -> Sequence[Path]:
        """Return the configuration and the weights; nothing if one of them leads out of the directory."""
        try:
            return [model_file(path, name) for name in (CONFIG_FILE, WEIGHTS_FILE)]
        except ModelError:
            return []

    def read(self, path: Path, config: ModelConfig) -> AdapterWeights:
        """Return the adapter's weights; raises AdapterError."""
        return read_peft(path, config)


BUILTIN = {"peft": PeftReader()}
"""The readers of the core by name."""


def recognizing(path: Path, readers: Iterable[tuple[str, AdapterReader]]) -> AdapterReader | None:
    """Return the first of ``readers`` that recognizes ``path``, or None."""
    return next((reader for _, reader in readers if reader.recognizes(path)), None)
