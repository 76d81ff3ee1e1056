"""PEFT directories as adapters, for the hook."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from infeng_core.api import ModelError, model_file
from infeng_core.api.formats import ModelConfig
from infeng_peft.adapter import WEIGHTS_FILE, is_peft, read_peft
from infeng_peft.config import CONFIG_FILE
from infeng_peft.reading import WeightsReader
from infeng_peft.weights import AdapterWeights


class PeftReader(WeightsReader):
    """The reader of directories that PEFT saved."""

    def recognizes(self, path: Path) -> bool:
        """Return whether a directory holds, or should hold, a PEFT adapter."""
        return is_peft(path)

    def files(self, path: Path) -> Sequence[Path]:
        """Return the configuration and the weights; nothing where one of them leads out of the directory."""
        try:
            return [model_file(path, name) for name in (CONFIG_FILE, WEIGHTS_FILE)]
        except ModelError:
            return []

    def read(self, path: Path, config: ModelConfig) -> AdapterWeights:
        """Return the adapter's weights; raises AdapterError."""
        return read_peft(path, config)
