"""The source of step costs: measured here, shipped with this wheel, or read from a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from infeng_bench.costs import step_costs
from infeng_bench.costs.step_costs import StepCosts
from infeng_core.api.formats import ModelConfig, layout

MEASURE, DEFAULT = "measure", "default"


def add_costs(parser: argparse.ArgumentParser) -> None:
    """Add ``--costs``."""
    help = "what steps take: measure (on this engine, once, kept in the cache), default (shipped, of another machine) "
    help += "or a FILE that infeng bench serve --fit wrote"
    parser.add_argument("--costs", default=MEASURE, metavar="C", help=help)


def find(arguments: argparse.Namespace, shape: ModelConfig, measured: Callable[[], StepCosts]) -> StepCosts:
    """Return the costs of ``--costs`` for a model of ``shape``; raises UsageError for a file without costs.

    measured: returns those of ``measure``. The shipped costs are scaled by the model's multiply-adds per token.
    """
    if arguments.costs == DEFAULT:
        return shipped(shape)
    return measured() if arguments.costs == MEASURE else StepCosts.read(arguments.costs)


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
