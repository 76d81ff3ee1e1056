"""The core's functions over files, called with the plugins that are installed, as commands and engines call them."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

from infeng_convert import survey
from infeng_convert.packed_model import open_source
from infeng_convert.providers import reader_of
from infeng_convert.sources import find as find_source
from infeng_gguf import export

from infeng_core.formats import loader
from infeng_core.formats.adapters import conversion
from infeng_core.formats.adapters import load as adapters
from infeng_core.formats.adapters.conversion import AdapterConversion
from infeng_core.formats.adapters.packed import PackedAdapter
from infeng_core.formats.model_writers import Export
from infeng_core.formats.tensors import LoadedModel
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins


@cache
def plugins() -> Plugins:
    return Plugins.discover(load_config(None, environ={}))


def load(path: Path, config: Any, **more: Any) -> LoadedModel:
    return loader.load(path, config, plugins(), **more)


def find(reference: str | Path) -> Path:
    return find_source(reference, plugins())


def load_adapter(*given: Any, **more: Any) -> PackedAdapter:
    return adapters.load_adapter(*given, providers=plugins(), **more)


def convert_adapter(*given: Any, **more: Any) -> AdapterConversion:
    return conversion.convert_adapter(*given, providers=plugins(), **more)


def look_at(*given: Any, **more: Any) -> survey.Survey:
    return survey.survey(*given, plugins=plugins(), **more)


def export_gguf(source: Path, destination: Path, format: str, **more: Any) -> Export:
    return export.export_gguf(open_source(source, partial(reader_of, providers=plugins())), destination, format, **more)
