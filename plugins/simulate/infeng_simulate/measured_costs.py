"""Costs of steps measured on this machine once and kept in the cache."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from infeng_bench import options
from infeng_bench.costs import calibration
from infeng_bench.costs.step_costs import StepCosts
from infeng_bench.models.cache import digest
from infeng_bench.models.model_shape import ModelShape
from infeng_bench.reports import machine

from infeng_core.api import Engine, EngineConfig, cache_root, require_own

VERSION = 1  # part of the cache key; raised when the measurement changes


def kept(arguments: argparse.Namespace, config: EngineConfig, shape: ModelShape) -> StepCosts:
    """Return the costs of an engine under ``config``, from the cache or measured now."""
    place = _place(arguments, config, shape)
    require_own(place)
    if place.is_file():
        return StepCosts.read(place)
    path = options.model_directory(arguments, config.model.format)
    with Engine(config=options.config(arguments, model__path=path)) as engine:
        measured = calibration.measure(engine)
    place.parent.mkdir(parents=True, exist_ok=True)
    measured.write(place)
    return measured


def _place(arguments: argparse.Namespace, config: EngineConfig, shape: ModelShape) -> Path:
    """Return the cache file of this engine's costs on this machine."""
    settings = {name: str(value) for name, value in config.values().items() if name != "model.path"}
    facts: list[Any] = [VERSION, shape.name, str(arguments.model), settings, options.threads(arguments)]
    facts += [machine.machine()["cpu"], machine.features(), machine.versions()]
    return cache_root() / "bench" / "costs" / f"{digest(facts, 12)}.json"
