"""Loading models with the core and the wheel of conversion alone, as no other plugin were installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from infeng_convert.converter import ArtifactConverter
from infeng_convert.providers import Own

from infeng_core.formats import loader
from infeng_core.formats.converters import Converter
from infeng_core.formats.providers import Providers
from infeng_core.formats.tensors import LoadedModel
from infeng_core.settings.config import EngineConfig


class WithConverter(Own):
    """The core and this wheel."""

    def converters(self) -> Iterator[tuple[str, Callable[[Any, Any], Converter]]]:
        """Yield the converter."""
        yield "artifacts", ArtifactConverter


CONVERTING = WithConverter()


def load(reference: str | Path, config: EngineConfig, plugins: Providers = CONVERTING, **options: bool) -> LoadedModel:
    """Do as ``loader.load``; options: its ``verify`` and ``progress``."""
    return loader.load(reference, config, plugins, **options)
