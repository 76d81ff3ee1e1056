"""Loading models with the core and the wheel of conversion alone, as no other plugin were installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infeng_convert.converter import ArtifactConverter
from infeng_convert.providers import Own

from infeng_core.formats import loader
from infeng_core.formats.providers import Providers
from infeng_core.formats.tensors import LoadedModel
from infeng_core.plug.hookspecs import CONVERTERS, Hook
from infeng_core.settings.config import EngineConfig


class WithConverter(Own):
    """The core and this wheel."""

    def parts(self, hook: Hook[Any]) -> Mapping[str, Any]:
        """Return the parts of a kind by name, the converter among them."""
        return {"artifacts": ArtifactConverter} if hook == CONVERTERS else super().parts(hook)


CONVERTING = WithConverter()


def load(reference: str | Path, config: EngineConfig, plugins: Providers = CONVERTING, **options: bool) -> LoadedModel:
    """Do as ``loader.load``; options: its ``verify`` and ``progress``."""
    return loader.load(reference, config, plugins, **options)
