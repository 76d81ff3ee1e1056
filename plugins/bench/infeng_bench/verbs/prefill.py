"""`infeng bench prefill`: prefill throughput, until each prompt has its first new token."""

from __future__ import annotations

import argparse
from typing import Any

from infeng_bench.engine.running import Timing
from infeng_bench.engine.session import Session
from infeng_bench.engine.work import Work
from infeng_bench.options import Column
from infeng_bench.stats.rates import fractions
from infeng_bench.stats.summary import latencies, spread
from infeng_bench.verbs import timed_works

NAME = "prefill"
TABLE = (
    Column("work", "work"),
    *(Column(heading, f"tokens_per_s.{key}", ".0f") for heading, key in timed_works.RATES),
    Column("ms to first token", "median_ttft_ms", ".0f"),
    Column("p99", "p99_ttft_ms", ".0f"),
    Column("of int8", "int8_fraction", ".0%"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    timed_works.configure(parser, "prompts")


def run(arguments: argparse.Namespace) -> int:
    works = [Work(NAME, rows, context) for rows in arguments.rows for context in arguments.context]
    return timed_works.run(NAME, arguments, works, measurement, TABLE)


def measurement(bench: Session, work: Work, timings: list[Timing]) -> dict[str, Any]:
    """Return the figures of one work: rates are medians over the rounds, latencies are over all prompts."""
    rates = spread([timing.tokens_per_s for timing in timings])
    found = {
        "work": str(work),
        "rows": work.rows,
        "context": work.context,
        "tokens_per_s": rates,
        "prefill_tokens_per_s": rates["median"],
        **latencies("ttft", [seconds for timing in timings for seconds in timing.first_tokens]),
    }
    batch = min(bench.engine.limits.max_rows, work.tokens)
    steps = -(-work.tokens // batch)
    macs, nbytes = bench.cost.prefill_macs(work.rows, work.context), steps * bench.cost.step_bytes(batch)
    seconds = spread([timing.seconds for timing in timings])["median"]
    return found | fractions(macs, nbytes, seconds, bench.ceiling(batch))
