"""Adapters in comparisons: what a format costs with an adapter on both sides, beside what it costs the base model."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tqdm import tqdm

from infeng_core.api import Engine, UsageError
from infeng_core.api.servers import parse_lora
from infeng_quality.greedy import divergence
from infeng_quality.scoring import Scores
from infeng_quality.teacher import Teacher
from infeng_quality.texts import Window

MOST = 64
"""Most adapters of one comparison."""


class Wanted(NamedTuple):
    """An adapter of ``--lora``."""

    name: str
    path: str
    scale: float


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--lora``."""
    help = "also with this adapter on both sides: PEFT directory, artifact, plugin's file or hub name; repeats"
    parser.add_argument("--lora", action="append", default=[], metavar="NAME=PATH[:SCALE]", help=help)


def wanted(arguments: argparse.Namespace) -> list[Wanted]:
    """Return the adapters of ``--lora``; raises UsageError for one of another form, a name given twice, or too many."""
    found = [Wanted(*parse_lora(text)) for text in getattr(arguments, "lora", [])]
    if len({one.name for one in found}) < len(found):
        raise UsageError("--lora", "a name is given twice", "give each adapter a name of its own")
    if len(found) > MOST:
        raise UsageError("--lora", f"{len(found)} adapters are given", f"give at most {MOST} at a time")
    return found


def load(engine: Engine, adapter: Wanted) -> None:
    """Load an adapter and keep it in memory. Raises AdapterError or ResourceError."""
    engine.adapters.load(adapter.name, adapter.path, scale=adapter.scale, pin=True)


def compared(
    reference: Engine, candidate: Engine, adapter: Wanted, windows: Sequence[Window], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures of a comparison with an adapter on both sides; it leaves the engines as they were.

    Each side stores the adapter as its ``adapters.dtype`` says. Raises InfengError.
    """
    sides = (reference, candidate)
    loaded: list[Engine] = []
    try:
        for engine in sides:
            load(engine, adapter)
            loaded.append(engine)
        ours, theirs = (
            Teacher(engine.executable, engine.limits, functools.partial(engine.adapters.held, adapter.name))
            for engine in sides
        )
        total = sum(window.predicted for window in windows)
        with tqdm(total=total, unit="token", desc=adapter.name, disable=None, file=sys.stderr, leave=False) as bar:
            scores = Scores.of(ours, theirs, windows, bar.update)
        info = candidate.adapters[adapter.name]
        return {
            "name": adapter.name,
            "adapter": adapter.path,
            "scale": adapter.scale,
            "stored": candidate.config.adapters.dtype,
            "bytes": info.bytes,
            **scores.figures(arguments.resamples, arguments.seed),
            "greedy": divergence(reference, candidate, windows, adapter.name),
        }
    finally:
        for engine in loaded:
            engine.adapters.unload(adapter.name)


def lines(one: Mapping[str, Any]) -> list[str]:
    """Return the printed lines of an adapter's figures."""
    ratio, kl, bounds, top = one["ppl_ratio"], one["kl"], one["kl_interval"], one["top1_interval"]
    return [
        f"  with adapter {one['name']}, stored as {one['stored']}:",
        f"    perplexity {ratio['value']:.5f} times ({ratio['low']:.5f} to {ratio['high']:.5f})",
        f"    KL         {kl['mean']:.4g} ({bounds['low']:.4g} to {bounds['high']:.4g})",
        f"    top 1      {one['top1']:.2%} the same ({top['low']:.2%} to {top['high']:.2%})",
    ]
