"""`infeng bench prefill`: how fast prompts are read, until each has its first new token."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from infeng_bench import options
from infeng_bench.figures import fractions
from infeng_bench.running import Timing, perform
from infeng_bench.session import Session, opened
from infeng_bench.spread import latencies, spread
from infeng_bench.works import Work

NAME = "prefill"
HELP = "measure prefilling: tokens of prompts per second"

ROUNDS = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--rows", type=options.counts, default="1", metavar="N,N", help="prompts at a time (1)")
    parser.add_argument("--context", type=options.counts, default="1024", metavar="N,N", help="tokens of each (1024)")
    options.add_sampling(parser, ROUNDS)
    options.add_roofline(parser)
    options.add_model(parser)
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write."""
    works = [Work(NAME, rows, context) for rows in arguments.rows for context in arguments.context]
    with opened(arguments) as session:
        timings: dict[Work, list[Timing]] = {work: [] for work in works}
        turns = [(index, work) for index in range(arguments.rounds) for work in works]
        for index, work in options.progress(turns, NAME):
            timings[work].append(perform(session.engine, work, arguments.seed + index))
        measured = [measurement(session, work, timings[work]) for work in works]
        result = session.record(NAME, {"measurements": measured}, seed=arguments.seed, rounds=arguments.rounds)
    options.deliver(result, arguments, options.columns(_table(measured)))
    return 0


def measurement(session: Session, work: Work, timings: list[Timing]) -> dict[str, Any]:
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
    batch = min(session.engine.limits.max_rows, work.tokens)
    steps = -(-work.tokens // batch)
    macs, nbytes = session.cost.prefill_macs(work.rows, work.context), steps * session.cost.weight_bytes
    seconds = spread([timing.seconds for timing in timings])["median"]
    return found | fractions(macs, nbytes, seconds, session.ceiling(batch))


def _table(measured: list[dict[str, Any]]) -> Iterator[list[str]]:
    yield ["work", "tokens/s", "min", "max", "ms to first token", "p99", "of int8"]
    for line in measured:
        yield [
            line["work"],
            *(f"{line['tokens_per_s'][name]:.0f}" for name in ("median", "min", "max")),
            *(f"{line[name]:.0f}" for name in ("median_ttft_ms", "p99_ttft_ms")),
            f"{line['int8_fraction']:.0%}" if "int8_fraction" in line else "",
        ]
