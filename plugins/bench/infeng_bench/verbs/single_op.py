"""The common arguments and results of the verbs that measure single ops."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from infeng_bench import options
from infeng_bench.kernels import linears, oracles
from infeng_bench.kernels.roofline import Roofline
from infeng_bench.options import Column
from infeng_bench.reports import results

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
    options.deliver(result, arguments, options.columns(options.table(table, linears.shaped(measured))))
    return 0
