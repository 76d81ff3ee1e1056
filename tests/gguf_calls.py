"""The core's functions over files, called with the plugins that are installed, as commands and engines call them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from adapter_calls import plugins
from infeng_convert import survey
from infeng_convert.interfaces.writers import Export
from infeng_convert.packed_model import open_source
from infeng_convert.providers import reader_of
from infeng_convert.sources import find as find_source
from infeng_gguf import export

from infeng_core.formats import loader
from infeng_core.formats.tensors import LoadedModel


def load(path: Path, config: Any, **more: Any) -> LoadedModel:
    return loader.load(path, config, plugins(), **more)


def find(reference: str | Path) -> Path:
    return find_source(reference, plugins())


def look_at(*given: Any, **more: Any) -> survey.Survey:
    return survey.survey(*given, plugins=plugins(), **more)


def export_gguf(source: Path, destination: Path, format: str, **more: Any) -> Export:
    return export.export_gguf(open_source(source, partial(reader_of, providers=plugins())), destination, format, **more)
