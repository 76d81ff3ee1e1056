"""What the verbs that measure one op at a time share: their arguments, and what becomes of the measurements."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from infeng_bench import options, oracles, results
from infeng_bench.roofline import Roofline

KERNEL = "these instead of the engine's choice, such as avx512 or avx512/NAME; all: every one that accepts"


def add_arguments(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Add which kernels and oracles are measured, and what every measurement has."""
    parser.add_argument("--kernel", type=options.words, default=[], metavar="K,K", help=KERNEL)
    oracles.add_arguments(parser)
    options.add_measurement(parser, rounds, has_roofline=True)


def deliver(
    kind: str,
    arguments: argparse.Namespace,
    measured: Sequence[dict[str, Any]],
    table: Iterable[Iterable[object]],
    *,
    ceilings: Roofline | None,
    others: Sequence[oracles.Oracle],
    **context: Any,
) -> int:
    """Write and show the measurements of kernels, and of the oracles beside them; returns the exit status."""
    result = results.record(
        kind,
        {"measurements": list(measured), **({"roofline": ceilings.to_dict()} if ceilings else {})},
        **context,
        seed=arguments.seed,
        rounds=arguments.rounds,
        kernels=sorted({line["kernel"] for line in measured if not line.get("oracle")}),
        oracles={oracle.engine: oracle.version for oracle in others} or None,
    )
    options.deliver(result, arguments, options.columns(table))
    return 0
