"""`infeng bench prefill`: how fast prompts are read, until each has its first new token."""

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
from infeng_bench.works import Work

NAME = "prefill"
HELP = "measure prefilling: tokens of prompts per second"

ROUNDS = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    session.add_works(parser, "prompts", ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write."""
    works = [Work(NAME, rows, context) for rows in arguments.rows for context in arguments.context]
    result = session.measured(NAME, arguments, works, measurement)
    options.deliver(result, arguments, options.columns(_table(result)))
    return 0


def measurement(bench: Session, work: Work, timings: list[Timing]) -> dict[str, Any]:
    """Return the figures of one work: rates are medians over the rounds, latencies are of every prompt."""
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


def _table(result: Mapping[str, Any]) -> Iterator[list[str]]:
    has_shares = not withheld(result)
    yield ["work", "tokens/s", "min", "max", "ms to first token", "p99", "of int8"]
    for line in result["measurements"]:
        yield [
            line["work"],
            *(f"{line['tokens_per_s'][name]:.0f}" for name in ("median", "min", "max")),
            *(f"{line[name]:.0f}" for name in ("median_ttft_ms", "p99_ttft_ms")),
            f"{line['int8_fraction']:.0%}" if has_shares and "int8_fraction" in line else "",
        ]
