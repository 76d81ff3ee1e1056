"""The source of step costs: measured here and cached, shipped with this wheel, or read from a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from infeng_bench import options
from infeng_bench.costs import calibration, step_costs
from infeng_bench.costs.step_costs import StepCosts
from infeng_bench.models.cache import digest
from infeng_bench.models.model_shape import ModelShape
from infeng_bench.reports import machine
from infeng_core.api import EngineConfig, cache_root, require_own
from infeng_core.api.formats import ModelConfig, layout

MEASURE, DEFAULT = "measure", "default"
VERSION = 1  # part of the cache key; raised when the measurement changes


def add_costs(parser: argparse.ArgumentParser) -> None:
    """Add ``--costs``."""
    help = "what steps take: measure (on this engine, once, kept in the cache), default (shipped, of another machine) "
    help += "or a FILE that infeng bench serve --fit wrote"
    parser.add_argument("--costs", default=MEASURE, metavar="C", help=help)


def find(arguments: argparse.Namespace, config: EngineConfig, shape: ModelShape) -> StepCosts:
    """Return the costs of ``--costs``; raises UsageError for a file without costs.

    The shipped costs are scaled by the model's multiply-adds per token.
    """
    if arguments.costs == DEFAULT:
        return shipped(shape.config)
    if arguments.costs != MEASURE:
        return StepCosts.read(arguments.costs)
    place = _place(arguments, config, shape)
    require_own(place)
    if place.is_file():
        return StepCosts.read(place)
    measured = _measured(arguments, config)
    place.parent.mkdir(parents=True, exist_ok=True)
    measured.write(place)
    return measured


def shipped(shape: ModelConfig) -> StepCosts:
    """Return the shipped costs, scaled to a model of ``shape``."""
    costs = step_costs.default()
    own = macs_per_token(shape)
    factor = own / costs.facts["macs_per_token"]
    source = f"default: {costs.source}"
    return costs.scaled(factor, source if factor == 1 else f"{source}, times {factor:.4g} for this model")


def macs_per_token(shape: ModelConfig) -> int:
    """Return the multiply-adds of a model's linears for one row, the head included."""
    head = "embed" if shape.tie_embeddings else "lm_head"
    tensors = layout(shape).tensors
    return sum(tensor.panels * 16 * tensor.k for tensor in tensors if tensor.name != "embed" or head == "embed")


def _measured(arguments: argparse.Namespace, config: EngineConfig) -> StepCosts:
    from infeng_core.api import Engine

    path = options.model_directory(arguments, config.model.format)
    with Engine(config=options.config(arguments, model__path=path)) as engine:
        return calibration.measure(engine)


def _place(arguments: argparse.Namespace, config: EngineConfig, shape: ModelShape) -> Path:
    """Return the cache file of this engine's costs on this machine."""
    settings = {name: str(value) for name, value in config.values().items() if name != "model.path"}
    facts: list[Any] = [VERSION, shape.name, str(arguments.model), settings, options.threads(arguments)]
    facts += [machine.machine()["cpu"], machine.features(), machine.versions()]
    return cache_root() / "bench" / "costs" / f"{digest(facts, 12)}.json"
