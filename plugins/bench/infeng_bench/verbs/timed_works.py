"""`infeng bench decode` and `infeng bench prefill`: works of several sizes in turn, on one engine or on several."""

from __future__ import annotations

import argparse
from typing import Any

from infeng_bench import options
from infeng_bench.beside import peers
from infeng_bench.engine.command_line import make_room
from infeng_bench.engine.running import Timing, perform
from infeng_bench.engine.session import Session, opened
from infeng_bench.engine.work import STEPS, Work
from infeng_bench.options import Column
from infeng_bench.stats.contention import withheld
from infeng_bench.stats.rates import fractions
from infeng_bench.stats.summary import latencies, spread

ROUNDS = 5
SHARES = ("dram_fraction", "int8_fraction")
RATES = (("tokens/s", "median"), ("min", "min"), ("max", "max"))  # headings and keys of a spread of rates


DECODE = (
    Column("work", "work"),
    *(Column(heading, f"tokens_per_s.{key}", ".1f") for heading, key in RATES),
    Column("ms a step", "median_itl_ms", ".2f"),
    Column("p99", "p99_itl_ms", ".2f"),
    Column("MB a step", "bytes_per_step", ".1f", 1e-6),
    Column("GB/s", "bytes_per_s", ".1f", 1e-9),
    Column("of DRAM", "dram_fraction", ".0%"),
    Column("of int8", "int8_fraction", ".0%"),
)


PREFILL = (
    Column("work", "work"),
    *(Column(heading, f"tokens_per_s.{key}", ".0f") for heading, key in RATES),
    Column("ms to first token", "median_ttft_ms", ".0f"),
    Column("p99", "p99_ttft_ms", ".0f"),
    Column("of int8", "int8_fraction", ".0%"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sizes of the works and the options of a measurement."""
    kind = parser.prog.rpartition(" ")[2]  # the verb
    what = "sequences" if kind == "decode" else "prompts"
    options.add(parser, "--rows", options.counts, "1", "N,N", f"{what} at a time")
    options.add(parser, "--context", options.counts, "1024", "N,N", "tokens of each")
    options.add_engines(parser, "in turn, as infeng bench compare")
    options.add_measurement(parser, ROUNDS, has_roofline=True)
    if kind == "decode":
        parser.add_argument("--steps", type=options.positive, default=STEPS, metavar="N", help="new tokens")


def run(arguments: argparse.Namespace) -> int:
    """Do every work ``arguments.rounds`` times, in turn; write and print the figures of each.

    Shares of ceilings are left out of the printed table if the machine was too busy.
    """
    kind = arguments.verb
    figures, table = (decoded, DECODE) if kind == "decode" else (prefilled, PREFILL)
    steps = {"steps": arguments.steps} if kind == "decode" else {}
    works = [Work(kind, rows, context, **steps) for rows in arguments.rows for context in arguments.context]
    options.make_long_enough(arguments, works)
    make_room(arguments, max(work.rows for work in works))
    if arguments.engines or "," in (arguments.format or ""):
        return peers().compare(arguments, works, arguments.rounds)
    with opened(arguments) as session:
        timings: dict[Work, list[Timing]] = {work: [] for work in works}
        turns = [(index, work) for index in range(arguments.rounds) for work in works]
        for index, work in options.progress(turns, kind):
            timings[work].append(perform(session.engine, work, arguments.seed + index))
        found = [figures(session, work, timings[work]) for work in works]
        result = session.record(kind, {"measurements": found}, seed=arguments.seed, rounds=arguments.rounds)
    hidden = SHARES if withheld(result) else ()
    return options.deliver(result, arguments, options.columns(options.table(table, found, hidden)))


def decoded(bench: Session, work: Work, timings: list[Timing]) -> dict[str, Any]:
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


def prefilled(bench: Session, work: Work, timings: list[Timing]) -> dict[str, Any]:
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
