"""What reading models and adapters asks of plugins, and what the core answers where there are none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from infeng_core.errors import ModelError, UsageError, unknown_key_remedy
from infeng_core.formats import checkpoints, hub
from infeng_core.formats.adapters.readers import AdapterReader
from infeng_core.formats.locators import Locator
from infeng_core.formats.model_readers import ModelReader
from infeng_core.formats.quant import QuantFormat, builtin_format
from infeng_core.formats.quantizers import DEFAULT, QuantizerChoice
from infeng_core.formats.sources import Source
from infeng_core.models import families


class Providers(Protocol):
    """The plugins of an engine, as far as files are concerned. Readers and locators are imported one by one."""

    def model_families(self) -> Mapping[str, families.Family]:
        """Return the families by their ``model_type``."""

    def model_readers(self) -> Iterator[tuple[str, ModelReader]]:
        """Yield the readers of model files with their names, the core's first."""

    def adapter_readers(self) -> Iterator[tuple[str, AdapterReader]]:
        """Yield the readers of adapter files with their names."""

    def locators(self) -> Iterator[tuple[str, Locator]]:
        """Yield the locators with their names, the core's last: its names have the simplest form."""

    def sources(self) -> Mapping[str, Source]:
        """Return what writes model files as Hugging Face directories."""

    def quant_format(self, name: str) -> QuantFormat:
        """Return a weight format by name; raises an InfengError that lists the known ones."""

    def quantizer(self, name: str) -> QuantizerChoice:
        """Return a quantizer by name; raises an InfengError that lists the known ones."""

    def missing_wheel(self, reference: str, kind: str = "model_readers") -> str:
        """Return the remedy for a file or a name that nothing here reads: the wheel that does; "" for none known.

        kind: of the reader, "model_readers" or "adapter_readers".
        """


class Core:
    """The core without any plugin."""

    def model_families(self) -> Mapping[str, families.Family]:
        """Return the families of the core."""
        return families.builtin()

    def model_readers(self) -> Iterator[tuple[str, ModelReader]]:
        """Yield the reader of Hugging Face directories."""
        yield from checkpoints.BUILTIN.items()

    def adapter_readers(self) -> Iterator[tuple[str, AdapterReader]]:
        """Yield nothing: artifacts need no reader."""
        yield from ()

    def locators(self) -> Iterator[tuple[str, Locator]]:
        """Yield the hub."""
        yield from hub.BUILTIN.items()

    def sources(self) -> Mapping[str, Source]:
        """Return nothing."""
        return {}

    def quant_format(self, name: str) -> QuantFormat:
        """Return a weight format of the core."""
        return builtin_format(name)

    def quantizer(self, name: str) -> QuantizerChoice:
        """Return the built-in rounding."""
        if name != DEFAULT.name:
            raise UsageError(f"quantizer {name}", "unknown", unknown_key_remedy(name, [DEFAULT.name]))
        return DEFAULT

    def missing_wheel(self, reference: str, kind: str = "model_readers") -> str:
        """Return nothing: which wheels there are, plugins know."""
        return ""


CORE: Providers = Core()


def reader_of(path: Path, providers: Providers) -> ModelReader:
    """Return what reads the model at ``path``; raises UsageError for a file that nothing reads.

    A directory that nobody recognizes is left to the reader of Hugging Face directories, which says what it lacks.
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
    """Return the first reader that recognizes ``path``; None where none does."""
    return next((reader for _, reader in providers.model_readers() if reader.recognizes(path)), None)


def _refuse_models_inside(directory: Path, providers: Providers) -> None:
    """Raise ModelError for a directory without weights of its own in which files are models of another kind."""
    for file in sorted(filter(Path.is_file, directory.iterdir())):
        reader = recognizing(file, providers)
        if reader is not None:
            why = f"holds {reader.kind} files, of which each is a model of its own"
            raise ModelError(f"{directory}", why, f"give {file}")
        if wheel := providers.missing_wheel(str(file)):
            raise ModelError(f"{directory}", f"holds {file.name}, which nothing that is installed reads", wheel)
