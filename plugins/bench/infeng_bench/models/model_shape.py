"""The sizes and weight formats of a command's model, without its weights."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from infeng_inspect.api import shape_and_formats

from infeng_bench import options
from infeng_bench.models import shapes
from infeng_core.api import EngineConfig, Plugins
from infeng_core.api.formats import FormatLookup, ModelConfig, choose


@dataclass(frozen=True)
class ModelShape:
    """A model's name in results, its sizes, and the format of each of its tensors."""

    name: str
    config: ModelConfig
    formats: Mapping[str, str]

    @property
    def format(self) -> str:
        """The format of most tensors."""
        return most_common(self.formats)


def most_common(formats: Mapping[str, str]) -> str:
    """Return the format of most of a model's tensors."""
    return Counter(formats.values()).most_common(1)[0][0]


def model_shape(arguments: argparse.Namespace, config: EngineConfig, lookup: FormatLookup) -> ModelShape:
    """Return the shape of ``--synthetic`` or ``--model`` without making a model. Raises UsageError or ModelError.

    Formats are the choice of an engine under ``config``, or those of a converted model.
    """
    name = options.model_name(arguments)
    if arguments.model is not None:
        return ModelShape(name, *shape_and_formats(arguments.model, config, lookup, Plugins.discover(config)))
    shape = shapes.model_config(arguments.synthetic)
    return ModelShape(name, shape, choose(config, lookup).for_model(shape, lookup))
