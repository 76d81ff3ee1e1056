"""`infeng bench prefix`: TTFT of prompts whose prefix is computed, cached in memory, or saved on disk.

With ``--alora`` of calls with activated adapters on a conversation that the base has read.
"""

from __future__ import annotations

import argparse

from infeng_bench import options
from infeng_bench.engine import alora, prefix

NAME, ACTIVATED = "prefix", "alora"

ROUNDS = 4


def configure(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "--prompt", options.positive, 1024, "N", "tokens shared")
    options.add(parser, "--tail", options.positive, 1, "N", "tokens after them")
    help = "measure activated adapters of this rank on a shared conversation, beside a plain one"
    options.add(parser, "--alora", options.positive, None, "RANK", help)
    options.add(parser, "--targets", str, "all", "T", "what --alora changes: all, qv, or modules such as q_proj")
    options.add_measurement(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Measure one engine, then a second one that starts with the saved prefixes; print and write."""
    counts = {"rounds": arguments.rounds, "prompt": arguments.prompt, "tail": arguments.tail}
    if arguments.alora:
        record = alora.in_process(arguments, ACTIVATED) | counts
        record |= {"rank": arguments.alora, "targets": arguments.targets}
        return options.deliver(record, arguments, options.listed(alora.SHOWN, {ACTIVATED: record}))
    figures, record, _ = prefix.in_process(arguments, arguments.prompt, arguments.tail, arguments.rounds, NAME)
    record |= figures | counts
    return options.deliver(record, arguments, options.listed(prefix.SHOWN, {NAME: record}))
