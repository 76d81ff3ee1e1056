"""`infeng bench gemm`: each linear of a model on its own, with the engine's kernels or chosen ones."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

from infeng_bench import options
from infeng_bench.kernels import linears, oracles, programs
from infeng_bench.kernels.linears import Linear
from infeng_bench.kernels.programs import Choice
from infeng_bench.kernels.roofline import Roofline
from infeng_bench.models.model_shape import model_shape
from infeng_bench.options import Column
from infeng_bench.verbs import single_op
from infeng_core.api import EngineConfig, say
from infeng_core.api.formats import format_lookup

NAME = "gemm"

ROWS = "1,4,16,64,256"
ROUNDS = 10
TABLE = (
    Column("linear", "linear"),
    Column("n x k", "shape"),
    Column("rows", "rows"),
    Column("kernel", "kernel"),
    Column("us", "seconds.median", ".0f", 1e6),
    *single_op.RATES,
    Column("of int8", "int8_fraction", ".0%"),
    Column("bound", "bound"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "--rows", options.counts, ROWS, "N,N", "batch sizes")
    linears.add_linear(parser)
    help = "a kernel library beside the engine's choice, also of close results, such as onednn"
    parser.add_argument("--peer", default="", metavar="LIBRARY", help=help)
    single_op.add_arguments(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    config, threads = options.config(arguments), options.threads(arguments)
    with contextlib.closing(programs.Choices(config, "linear", arguments.kernel, arguments.peer)) as choices:
        lookup = format_lookup(choices.plugins)
        shape = model_shape(arguments, config, lookup)
        every = linears.linears(shape, lookup)
        wanted = linears.named(every, arguments.linear)
        ceilings = options.roofline(arguments, threads)
        with oracles.started(arguments, threads) as others:
            bench = _Bench(config, choices, threads, sum(linear.nbytes * linear.count for linear in every), ceilings)
            measured = [
                line
                for linear, rows in options.progress([(a, b) for a in wanted for b in arguments.rows], "linears")
                for line in bench.measure(linear, rows, arguments.rounds, others)
            ]
    if arguments.peer and not any(line["kernel"].startswith(f"{arguments.peer}/") for line in measured):
        say(f"{arguments.peer}: it takes none of these rows and formats: see infeng plugins info {arguments.peer}")
    facts = {"model": shape.name, "format": shape.format, "threads": threads}
    return single_op.deliver(NAME, arguments, measured, TABLE, ceilings=ceilings, others=others, **facts)


class _Bench:
    """The choices, workers and ceilings of a run."""

    def __init__(
        self, config: EngineConfig, choices: programs.Choices, threads: int, footprint: int, ceilings: Roofline | None
    ) -> None:
        self._choices = choices
        self._threads = threads
        self._footprint = footprint
        self._ceilings = ceilings
        self._pool = programs.pool(config, threads)

    def measure(self, linear: Linear, rows: int, rounds: int, others: list[oracles.Oracle]) -> Iterator[dict[str, Any]]:
        """Yield a measurement for each kernel and oracle, taken in turn."""
        quant = linear.quant
        fields = {"weight": quant.stored, "act": quant.activation, "n": linear.panels * linears.PANEL, "k": linear.k}
        kernels = self._choices.of(rows, workers=self._threads, **fields)
        copies = linears.copies_for(linear, rows, self._footprint)
        ours: list[programs.KernelProgram] = []
        for kernel in kernels:
            like = ours[0].op if ours else None
            ours.append(linears.subject(linear, kernel, copies, rows, self._pool, self._choices.reference, like))
        theirs = [subject for oracle in others for subject in oracle.linear(linear, rows, copies)]
        facts = {"linear": linear.name, "n": linear.n, "k": linear.k, "rows": rows}
        found = single_op.Measured(kernels, ours, theirs, rows * linear.n * linear.k, linear.nbytes, not quant.is_float)
        for one, shown in found.figures(rounds, self._threads, self._ceilings, others):
            told = (quant.name, copies) if isinstance(one, Choice) else (one.format, one.calls)
            yield {**facts, "format": told[0], "copies": told[1], **shown}
