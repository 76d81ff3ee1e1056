"""The common arguments and results of the verbs that measure single ops."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from infeng_bench import options
from infeng_bench.kernels import linears, oracles, probe
from infeng_bench.kernels.programs import Choice, KernelProgram, readings
from infeng_bench.kernels.roofline import Roofline
from infeng_bench.options import Column
from infeng_bench.reports import results
from infeng_bench.stats.rates import Ceiling, rates

RATES = (
    Column("GMAC/s", "gmacs_per_s", ".1f"),
    Column("MAC/cycle", "macs_per_cycle", ".1f"),
    Column("GB/s", "bytes_per_s", ".1f", 1e-9),
    Column("of DRAM", "dram_fraction", ".0%"),
)  # columns of an op's figures


def add_arguments(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Add the options of kernels and oracles, and those of ``options.add_measurement``."""
    help = "these instead of the engine's choice, such as avx512 or avx512/NAME; all: every one that accepts"
    parser.add_argument("--kernel", type=options.words, default=[], metavar="K,K", help=help)
    oracles.add_arguments(parser)
    options.add_measurement(parser, rounds, has_roofline=True)


class Measured(NamedTuple):
    """Programs of our kernels, and the same op of oracles, which are measured in turn."""

    kernels: Sequence[Choice]
    ours: Sequence[KernelProgram]
    theirs: Sequence[oracles.OracleOp]
    macs: int  # multiply-adds of one call
    nbytes: int  # bytes that one call of ours reads
    is_int8: bool  # whether the multiplications of ours are

    def figures(
        self, rounds: int, threads: int, ceilings: Roofline | None, others: Sequence[oracles.Oracle]
    ) -> Iterator[tuple[Choice | oracles.OracleOp, dict[str, Any]]]:
        """Yield each kernel and each op of ``others`` with its figures, from ``rounds`` readings taken in turn."""
        times = readings([*self.ours, *self.theirs], rounds)
        for oracle in others:
            oracle.clear()
        clock = probe.clock_hz()
        for kernel, seconds in zip(self.kernels, times, strict=False):
            ceiling = Ceiling.of(ceilings, kernel.features, self.is_int8)
            shown = rates(self.macs, self.nbytes, seconds, threads=threads, clock_hz=clock, ceiling=ceiling)
            yield kernel, {"kernel": kernel.name, **shown}
        for op, seconds in zip(self.theirs, times[len(self.ours) :], strict=True):
            shown = rates(self.macs, op.nbytes, seconds, threads=threads, clock_hz=clock, ceiling=None)
            yield op, {"kernel": op.name, "oracle": True, **shown}


def deliver(
    kind: str,
    arguments: argparse.Namespace,
    measured: Sequence[dict[str, Any]],
    table: Sequence[Column],
    *,
    ceilings: Roofline | None,
    others: Sequence[oracles.Oracle],
    **context: Any,
) -> int:
    """Write and print the measurements of kernels and oracles; return the exit status."""
    result = results.record(
        kind,
        {"measurements": list(measured), **({"roofline": ceilings.to_dict()} if ceilings else {})},
        **context,
        seed=arguments.seed,
        rounds=arguments.rounds,
        kernels=sorted({line["kernel"] for line in measured if not line.get("oracle")}),
        oracles={oracle.name: str(oracle.introduction["version"]) for oracle in others} or None,
    )
    return options.deliver(result, arguments, options.columns(options.table(table, linears.shaped(measured))))
