"""`infeng bench gemm`: each linear of a model by itself, with the kernels that the engine would bind, or others."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from infeng_bench import linears, options, oracles, probe, single, subjects
from infeng_bench.figures import Ceiling, rates
from infeng_bench.linears import Linear
from infeng_bench.modelshape import model_shape
from infeng_bench.roofline import Roofline
from infeng_core.api import EngineConfig

NAME = "gemm"
HELP = "measure the linears of a model one by one"

ROWS = "1,4,16,64,256"
ROUNDS = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--rows", type=options.counts, default=ROWS, metavar="N,N", help=f"batch sizes ({ROWS})")
    parser.add_argument(
        "--linear", type=options.words, default=[], metavar="NAME,NAME", help="only these, such as down_proj"
    )
    single.add_arguments(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write."""
    config = options.config(arguments)
    threads = options.threads(arguments)
    choices = subjects.Choices(config, "linear", arguments.kernel)
    try:
        lookup = choices.plugins.quant_format
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
    finally:
        choices.close()
    facts = {"model": shape.name, "format": shape.format, "threads": threads}
    return single.deliver(NAME, arguments, measured, _table(measured), ceilings=ceilings, others=others, **facts)


class _Bench:
    """What all measurements of a run share."""

    def __init__(
        self, config: EngineConfig, choices: subjects.Choices, threads: int, footprint: int, ceilings: Roofline | None
    ) -> None:
        self._choices = choices
        self._threads = threads
        self._footprint = footprint
        self._ceilings = ceilings
        self._pool = subjects.pool(config, threads)

    def measure(self, linear: Linear, rows: int, rounds: int, others: list[oracles.Oracle]) -> Iterator[dict[str, Any]]:
        """Yield a measurement for each kernel and oracle, taken in turn."""
        quant = linear.quant
        fields = {"weight": quant.stored, "act": quant.activation, "n": linear.panels * linears.PANEL, "k": linear.k}
        kernels = self._choices.of(rows, workers=self._threads, **fields)
        copies = linears.copies_for(linear, rows, self._footprint)
        ours: list[subjects.Ours] = []
        for kernel in kernels:
            like = ours[0].op if ours else None
            ours.append(linears.subject(linear, kernel, copies, rows, self._pool, self._choices, like))
        theirs = [subject for oracle in others for subject in oracle.linear(linear, rows, copies)]
        times = subjects.readings([*ours, *theirs], rounds)
        for oracle in others:
            oracle.clear()
        clock = probe.clock_hz()
        macs = rows * linear.n * linear.k
        facts = {"linear": linear.name, "n": linear.n, "k": linear.k, "rows": rows}
        for kernel, seconds in zip(kernels, times, strict=False):
            ceiling = Ceiling.of(self._ceilings, kernel.features, not quant.is_float)
            shown = rates(macs, linear.nbytes, seconds, threads=self._threads, clock_hz=clock, ceiling=ceiling)
            yield {**facts, "format": quant.name, "kernel": kernel.name, "copies": copies, **shown}
        for subject, seconds in zip(theirs, times[len(ours) :], strict=True):
            shown = rates(macs, subject.nbytes, seconds, threads=self._threads, clock_hz=clock, ceiling=None)
            facts_of = {"format": subject.format, "kernel": subject.name, "copies": subject.calls, "oracle": True}
            yield {**facts, **facts_of, **shown}


def _table(measured: list[dict[str, Any]]) -> Iterator[list[str]]:
    yield ["linear", "n x k", "rows", "kernel", "us", "GMAC/s", "MAC/cycle", "GB/s", "of DRAM", "of int8", "bound"]
    for line in measured:
        yield [
            line["linear"],
            f"{line['n']}x{line['k']}",
            line["rows"],
            line["kernel"],
            f"{line['seconds']['median'] * 1e6:.0f}",
            f"{line['gmacs_per_s']:.1f}",
            f"{line['macs_per_cycle']:.1f}",
            f"{line['bytes_per_s'] / 1e9:.1f}",
            *(f"{line[name]:.0%}" if name in line else "" for name in ("dram_fraction", "int8_fraction")),
            line.get("bound", ""),
        ]
