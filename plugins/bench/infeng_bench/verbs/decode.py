"""`infeng bench decode`: how fast sequences grow once their prompts are in the cache."""

from __future__ import annotations

import argparse
from typing import Any

from infeng_bench import options
from infeng_bench.engine import session
from infeng_bench.engine.running import Timing
from infeng_bench.engine.session import RATES, Session
from infeng_bench.engine.work import STEPS, Work
from infeng_bench.options import Column
from infeng_bench.stats.contention import withheld
from infeng_bench.stats.rates import fractions
from infeng_bench.stats.summary import latencies, spread
from infeng_bench.verbs import compare

NAME = "decode"

ROUNDS = 5
TABLE = (
    Column("work", "work"),
    *(Column(heading, f"tokens_per_s.{key}", ".1f") for heading, key in RATES),
    Column("ms a step", "median_itl_ms", ".2f"),
    Column("p99", "p99_itl_ms", ".2f"),
    Column("MB a step", "bytes_per_step", ".1f", 1e-6),
    Column("GB/s", "bytes_per_s", ".1f", 1e-9),
    Column("of DRAM", "dram_fraction", ".0%"),
    Column("of int8", "int8_fraction", ".0%"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    session.add_works(parser, "sequences", ROUNDS)
    parser.add_argument("--steps", type=options.positive, default=STEPS, metavar="N", help="new tokens")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write."""
    works = [Work(NAME, rows, context, arguments.steps) for rows in arguments.rows for context in arguments.context]
    if arguments.engines:
        return compare.against(arguments, works, arguments.rounds)
    result = session.measured(NAME, arguments, works, measurement)
    hidden = ("dram_fraction", "int8_fraction") if withheld(result) else ()
    options.deliver(result, arguments, options.columns(options.table(TABLE, result["measurements"], hidden)))
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
