"""The face of a writer of models as Hugging Face directories."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Source(Protocol):
    """A reader of model files. Registered by name through the hook ``infeng_sources``."""

    def reads(self, path: Path) -> bool:
        """Return whether the file or directory at ``path`` has this format, by its name or its first bytes."""

    def write(self, path: Path, directory: Path) -> None:
        """Write config.json, safetensors files and, if there is one, tokenizer.json into the empty ``directory``.

        Raises ModelError for a file that is broken.
        """
