"""The reader and the writer of GGUF models, for the hooks."""

from __future__ import annotations

from pathlib import Path

from infeng_convert.api import Checkpoint, Description, Export, ExportPlan, ModelFiles, ModelSource

from infeng_core.api.formats import families
from infeng_gguf.architectures import ARCHITECTURES
from infeng_gguf.checkpoint import GgufCheckpoint
from infeng_gguf.export import export_gguf, planned
from infeng_gguf.file import GgufFile, files_of, is_gguf
from infeng_gguf.types import TYPES


class GgufReader:
    """The reader of GGUF models, in one file or several."""

    kind = "GGUF"

    def supports(self) -> dict[str, list[str]]:
        """Return the supported architectures and tensor types."""
        known = families()
        return {
            "architectures": [name for name, one in ARCHITECTURES.items() if one.family in known],
            "types": [type.name for type in TYPES.values() if type.is_read],
        }

    def recognizes(self, path: Path) -> bool:
        """Return whether ``path`` is a file with GGUF's magic or suffix."""
        return is_gguf(path)

    def files(self, path: Path) -> ModelFiles:
        """Return the files of a model, of which the first has the metadata."""
        return ModelFiles(files_of(path), has_own_types=True)

    def has_weights(self, path: Path) -> bool:
        """Return True: a file without weights is refused."""
        return True

    def describe(self, path: Path) -> Description:
        """Return configuration and size of the tokenizer; raises ModelError, also for an invalid vocabulary."""
        metadata = GgufFile(path).metadata
        if metadata.get("general.type") == "adapter":
            return Description(None)
        checkpoint = GgufCheckpoint(path)
        words = checkpoint.tokenizer.files()["tokenizer.json"]
        return Description(checkpoint.config, len(words), has_template="tokenizer.chat_template" in metadata)

    def open(self, path: Path) -> Checkpoint:
        """Open a model; raises ModelError."""
        return GgufCheckpoint(path)


class GgufWriter:
    """The writer of GGUF files."""

    default = "f16"

    def writes(self, path: Path) -> bool:
        """Return whether the suffix of a path is .gguf."""
        return path.suffix == ".gguf"

    def plan(self, source: ModelSource, format: str) -> ExportPlan:
        """Return the type of each tensor, and the total bytes."""
        return planned(source, format)

    def write(self, source: ModelSource, destination: Path, format: str, *, force: bool, progress: bool) -> Export:
        """Write a model as one file."""
        return export_gguf(source, destination, format, force=force, progress=progress)
