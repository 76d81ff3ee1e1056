"""`infeng bench decode`: how fast sequences grow once their prompts are in the cache."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from infeng_bench import options, session
from infeng_bench.contention import withheld
from infeng_bench.figures import fractions
from infeng_bench.running import Timing
from infeng_bench.session import Session
from infeng_bench.spread import latencies, spread
from infeng_bench.works import STEPS, Work

NAME = "decode"
HELP = "measure decoding: tokens per second of sequences that hold a context"

ROUNDS = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    session.add_works(parser, "sequences", ROUNDS)
    parser.add_argument("--steps", type=options.positive, default=STEPS, metavar="N", help=f"new tokens ({STEPS})")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write."""
    works = [Work(NAME, rows, context, arguments.steps) for rows in arguments.rows for context in arguments.context]
    result = session.measured(NAME, arguments, works, measurement)
    options.deliver(result, arguments, options.columns(_table(result)))
    return 0


def measurement(bench: Session, work: Work, timings: list[Timing]) -> dict[str, Any]:
    """Return the figures of one work: rates are medians over the rounds, latencies are of all steps."""
    rates = [timing.tokens_per_s for timing in timings]
    per_step = [timing.seconds / work.steps for timing in timings]
    found = {
        "work": str(work),
        "rows": work.rows,
        "context": work.context,
        "steps": work.steps,
        "tokens_per_s": spread(rates),
        "decode_tokens_per_s": spread(rates)["median"],
        **latencies("itl", [seconds for timing in timings for seconds in timing.steps]),
        **latencies("tpot", [timing.seconds * work.rows / timing.tokens for timing in timings]),
    }
    positions = work.context + work.steps // 2  # on average over the steps
    macs, nbytes = bench.cost.decode_macs(work.rows, positions), bench.cost.decode_bytes(work.rows, positions)
    found |= {"bytes_per_step": nbytes, "bytes_per_s": nbytes / spread(per_step)["median"]}
    return found | fractions(macs, nbytes, spread(per_step)["median"], bench.ceiling(work.rows))


def _table(result: Mapping[str, Any]) -> Iterator[list[str]]:
    has_shares = not withheld(result)
    yield ["work", "tokens/s", "min", "max", "ms a step", "p99", "MB a step", "GB/s", "of DRAM", "of int8"]
    for line in result["measurements"]:
        yield [
            line["work"],
            *(f"{line['tokens_per_s'][name]:.1f}" for name in ("median", "min", "max")),
            *(f"{line[name]:.2f}" for name in ("median_itl_ms", "p99_itl_ms")),
            *(f"{line['bytes_per_step'] / 1e6:.1f}", f"{line['bytes_per_s'] / 1e9:.1f}"),
            *(
                f"{line[name]:.0%}" if has_shares and name in line else ""
                for name in ("dram_fraction", "int8_fraction")
            ),
        ]
