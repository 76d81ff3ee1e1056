"""`infeng bench decode`: decode throughput of sequences whose prompts are in the cache."""

from __future__ import annotations

import argparse
from typing import Any

from infeng_bench import options
from infeng_bench.engine.running import Timing
from infeng_bench.engine.session import Session
from infeng_bench.engine.work import STEPS, Work
from infeng_bench.options import Column
from infeng_bench.stats.rates import fractions
from infeng_bench.stats.summary import latencies, spread
from infeng_bench.verbs import timed_works

NAME = "decode"
TABLE = (
    Column("work", "work"),
    *(Column(heading, f"tokens_per_s.{key}", ".1f") for heading, key in timed_works.RATES),
    Column("ms a step", "median_itl_ms", ".2f"),
    Column("p99", "p99_itl_ms", ".2f"),
    Column("MB a step", "bytes_per_step", ".1f", 1e-6),
    Column("GB/s", "bytes_per_s", ".1f", 1e-9),
    Column("of DRAM", "dram_fraction", ".0%"),
    Column("of int8", "int8_fraction", ".0%"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    timed_works.configure(parser, "sequences")
    parser.add_argument("--steps", type=options.positive, default=STEPS, metavar="N", help="new tokens")


def run(arguments: argparse.Namespace) -> int:
    works = [Work(NAME, rows, context, arguments.steps) for rows in arguments.rows for context in arguments.context]
    return timed_works.run(NAME, arguments, works, measurement, TABLE)


def measurement(bench: Session, work: Work, timings: list[Timing]) -> dict[str, Any]:
    """Return the figures of one work: rates are medians over the rounds, latencies are over all steps."""
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
