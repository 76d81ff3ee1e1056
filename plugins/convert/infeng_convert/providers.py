"""The parts of plugins that conversion uses, and the parts of this wheel for use without other plugins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infeng_convert import checkpoints, hub
from infeng_convert.interfaces.hooks import MODEL_READERS, QUANTIZERS
from infeng_convert.interfaces.readers import ModelReader
from infeng_convert.quantizers import DEFAULT
from infeng_core.api import LOCATORS, Hook, ModelError, UsageError
from infeng_core.api.formats import Core, Providers


class Own(Core):
    """The core and this wheel, without any other plugin."""

    def parts(self, hook: Hook[Any]) -> Mapping[str, Any]:
        """Return the parts of a kind by name."""
        own: dict[Hook[Any], Mapping[str, Any]] = {
            MODEL_READERS: checkpoints.BUILTIN,
            LOCATORS: hub.BUILTIN,
            QUANTIZERS: {DEFAULT.name: DEFAULT.quantizer},
        }
        return own[hook] if hook in own else super().parts(hook)


OWN: Providers = Own()


def reader_of(path: Path, providers: Providers) -> ModelReader:
    """Return the reader of the model at ``path``; raises UsageError for a file without a reader.

    A directory that no reader recognizes goes to the reader of Hugging Face directories, which says what it lacks.
    """
    found = recognizing(path, providers)
    if path.is_dir() and not any(path.glob("*.safetensors*")):
        _refuse_models_inside(path, providers)
    if found is not None:
        return found
    if path.is_file():
        remedy = "give the directory that holds it together with config.json"
        raise UsageError(f"{path}", "is a file", providers.missing_wheel(str(path)) or remedy)
    return checkpoints.builtin_reader(path)


def recognizing(path: Path, providers: Providers) -> ModelReader | None:
    """Return the first reader that recognizes ``path``, or None."""
    return next((reader for _, reader in providers.each(MODEL_READERS) if reader.recognizes(path)), None)


def _refuse_models_inside(directory: Path, providers: Providers) -> None:
    """Raise ModelError for a directory without weights of its own whose files are models of another kind."""
    for file in sorted(filter(Path.is_file, directory.iterdir())):
        reader = recognizing(file, providers)
        if reader is not None:
            why = f"holds {reader.kind} files, of which each is a model of its own"
            raise ModelError(f"{directory}", why, f"give {file}")
        if wheel := providers.missing_wheel(str(file)):
            raise ModelError(f"{directory}", f"holds {file.name}, which nothing that is installed reads", wheel)
