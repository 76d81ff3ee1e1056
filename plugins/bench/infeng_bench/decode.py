"""`infeng bench decode`: how fast sequences grow once their prompts are in the cache."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from infeng_bench import options
from infeng_bench.figures import fractions
from infeng_bench.running import Timing, perform
from infeng_bench.session import Session, opened
from infeng_bench.spread import latencies, spread
from infeng_bench.works import STEPS, Work

NAME = "decode"
HELP = "measure decoding: tokens per second of sequences that hold a context"

ROUNDS = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--rows", type=options.counts, default="1", metavar="N,N", help="sequences at a time (1)")
    parser.add_argument("--context", type=options.counts, default="1024", metavar="N,N", help="tokens of each (1024)")
    parser.add_argument("--steps", type=options.positive, default=STEPS, metavar="N", help=f"new tokens ({STEPS})")
    options.add_sampling(parser, ROUNDS)
    options.add_roofline(parser)
    options.add_model(parser)
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write."""
    works = [Work(NAME, rows, context, arguments.steps) for rows in arguments.rows for context in arguments.context]
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
    macs, nbytes = session.cost.decode_macs(work.rows, positions), session.cost.decode_bytes(work.rows, positions)
    return found | fractions(macs, nbytes, spread(per_step)["median"], session.ceiling(work.rows))


def _table(measured: list[dict[str, Any]]) -> Iterator[list[str]]:
    yield ["work", "tokens/s", "min", "max", "ms a step", "p99", "of DRAM", "of int8"]
    for line in measured:
        yield [
            line["work"],
            *(f"{line['tokens_per_s'][name]:.1f}" for name in ("median", "min", "max")),
            *(f"{line[name]:.2f}" for name in ("median_itl_ms", "p99_itl_ms")),
            *(f"{line[name]:.0%}" if name in line else "" for name in ("dram_fraction", "int8_fraction")),
        ]
