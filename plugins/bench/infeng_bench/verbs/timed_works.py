"""The common part of `decode` and `prefill`: works of several sizes in turn, on one engine or on several."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from infeng_bench import options
from infeng_bench.engine.running import Timing, perform
from infeng_bench.engine.session import Session, opened
from infeng_bench.engine.work import Work
from infeng_bench.options import Column
from infeng_bench.peers import lineup
from infeng_bench.stats.contention import withheld
from infeng_bench.verbs import compare

ROUNDS = 5
SHARES = ("dram_fraction", "int8_fraction")
RATES = (("tokens/s", "median"), ("min", "min"), ("max", "max"))  # headings and keys of a spread of rates


def configure(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the sizes of the works and the options of a measurement. what: a word for rows."""
    parser.add_argument("--rows", type=options.counts, default="1", metavar="N,N", help=f"{what} at a time")
    parser.add_argument("--context", type=options.counts, default="1024", metavar="N,N", help="tokens of each")
    options.add_engines(parser, "in turn, as infeng bench compare")
    options.add_measurement(parser, ROUNDS, has_roofline=True)


def run(
    kind: str,
    arguments: argparse.Namespace,
    works: Sequence[Work],
    figures: Callable[[Session, Work, list[Timing]], dict[str, Any]],
    table: Sequence[Column],
) -> int:
    """Do every work ``arguments.rounds`` times, in turn; write and print the figures of each.

    table: the printed columns; shares of ceilings are left empty if the machine was too busy.
    """
    options.make_long_enough(arguments, works)
    lineup.make_room(arguments, max(work.rows for work in works), 0)
    if arguments.engines or "," in (arguments.format or ""):
        return compare.against(arguments, works, arguments.rounds)
    with opened(arguments) as session:
        timings: dict[Work, list[Timing]] = {work: [] for work in works}
        turns = [(index, work) for index in range(arguments.rounds) for work in works]
        for index, work in options.progress(turns, kind):
            timings[work].append(perform(session.engine, work, arguments.seed + index))
        found = [figures(session, work, timings[work]) for work in works]
        result = session.record(kind, {"measurements": found}, seed=arguments.seed, rounds=arguments.rounds)
    hidden = SHARES if withheld(result) else ()
    options.deliver(result, arguments, options.columns(options.table(table, found, hidden)))
    return 0
