"""`infeng bench experts`: the experts of a mixture's layers, alone or in turn with kTransformers'."""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable
from typing import Any

from infeng_bench import beside, options
from infeng_bench.kernels import probe
from infeng_bench.kernels.experts import Experts
from infeng_bench.kernels.roofline import Roofline
from infeng_bench.models.model_shape import model_shape
from infeng_bench.options import Column
from infeng_bench.reports import results
from infeng_bench.reports.machine import linear_features
from infeng_bench.reports.results import OURS
from infeng_bench.stats import paired
from infeng_bench.stats.contention import Mark, withheld
from infeng_bench.stats.rates import Ceiling, rates
from infeng_bench.stats.summary import spread
from infeng_bench.verbs import single_op
from infeng_core.api import Plugins
from infeng_core.api.formats import format_lookup

NAME = "experts"

ROWS = "1,4,16,128,512"
ROUNDS = 20
RATIOS = ("ratios", "ratio_low")

Sides = dict[int, Callable[..., float]]
"""By workers of the peer, 0 for ours: ``(rows, passes, seed)`` -> seconds of all passes over the layers."""


def configure(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "--rows", options.counts, ROWS, "N,N", "rows of a batch")
    others = beside.find()
    parts = None if others is None else others.parts  # any name without a plugin, whose error names the wheel
    parser.add_argument("--peer", choices=parts, help="another engine's experts, measured in turn")
    options.add_measurement(parser, ROUNDS, has_roofline=True)


def run(arguments: argparse.Namespace) -> int:
    config = options.config(arguments, adapters__max_resident=0)
    threads, name, most = options.threads(arguments), arguments.peer, max(arguments.rows)
    plugins = Plugins.discover(config)
    lookup = format_lookup(plugins)
    shape = model_shape(arguments, config, lookup)
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(contextlib.closing(Experts(shape, lookup, plugins, config, most, threads)))
        sides: Sides = {0: ours.run}
        facts: dict[str, Any] = {}
        for workers in sorted({threads, max(1, threads - 1)}) if name is not None else ():
            kind = beside.peers().number_type(name, ours.quant)
            oracle = stack.enter_context(contextlib.closing(beside.peers().oracle(name, None, workers)))
            theirs = oracle.experts(kind, layers=ours.layers, rows=most, **ours.size)
            sides[workers] = theirs.once
            facts = {"oracles": {name: f"{oracle.introduction['version']}, {theirs.name.partition('/')[2]}"}}
        ceilings = options.roofline(arguments, threads)
        turns = options.progress(arguments.rows, NAME)
        found = [_measured(ours, sides, rows, arguments, ceilings, threads) for rows in turns]
    figures: dict[str, Any] = {"measurements": found, **({"roofline": ceilings.to_dict()} if ceilings else {})}
    for figure in RATIOS if name is not None else ():
        figures[figure] = {name: {str(line["rows"]): line[figure][name] for line in found}}
    facts |= {"model": shape.name, "format": ours.quant.name, "threads": threads, "seed": arguments.seed}
    kernels = ours.introduction["kernels"]
    result = results.record(NAME, figures, rounds=arguments.rounds, kernels=kernels, **facts)
    shown = [{key: line[key] for key in line if key not in RATIOS or not withheld(line)} for line in found]
    return options.deliver(result, arguments, options.columns(options.table(_columns(name), shown)))


def _measured(
    ours: Experts, sides: Sides, rows: int, arguments: argparse.Namespace, ceilings: Roofline | None, threads: int
) -> dict[str, Any]:
    """Return the figures of one number of rows; each round has other experts, the same on all sides.

    Of a peer the faster number of workers counts. Its threads spin while they wait for each other, so only ours tell
    whether the machine was busy.
    """
    passes, waits = ours.passes(rows), []
    every: dict[int, list[float]] = {side: [] for side in sides}
    for number in range(arguments.rounds + 1):
        for side, measure in sides.items():
            mark = Mark.now()
            taken = measure(rows=rows, passes=passes, seed=arguments.seed + number) / passes / ours.layers
            if number:  # the first round warms up
                every[side].append(taken)
                waits += [mark.waits()] if side == 0 else []
    others = {side: statistics.median(each) for side, each in every.items() if side}
    best = min(others, key=others.__getitem__, default=0)
    seconds = {OURS: every[0], **({arguments.peer: every[best]} if best else {})}
    macs, nbytes = ours.work(rows)
    features = linear_features(ours.introduction, rows)
    ceiling = Ceiling.of(ceilings, features, not ours.quant.is_float)
    figures = rates(macs, nbytes, seconds[OURS], threads=threads, clock_hz=probe.clock_hz(), ceiling=ceiling)
    speeds = {name: [rows / taken for taken in each] for name, each in seconds.items()}
    figures |= {"rows": rows, "layers": ours.layers, "passes": passes}
    figures["engines"] = {name: {"seconds": spread(each)} for name, each in seconds.items()}
    if not best:
        return figures
    by_workers = {str(workers): taken for workers, taken in others.items()}
    figures["engines"][arguments.peer] |= {"workers": best, "seconds_by_workers": by_workers}
    return figures | paired.interleaved(speeds, {OURS: waits}, OURS)


def _columns(name: str | None) -> list[Column]:
    shown = [Column("rows", "rows"), Column("us", "seconds.median", ".0f", 1e6), *single_op.RATES]
    shown += [Column("of int8", "int8_fraction", ".0%"), Column("bound", "bound")]
    if name is None:
        return shown
    shown += [Column(f"{name} us", f"engines.{name}.seconds.median", ".0f", 1e6)]
    shown += [Column("workers", f"engines.{name}.workers")]
    return [*shown, Column("ratio", f"ratios.{name}", ".2f"), Column("at least", f"ratio_low.{name}", ".2f")]
