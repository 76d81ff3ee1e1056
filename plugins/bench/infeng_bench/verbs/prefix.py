"""`infeng bench prefix`: TTFT of prompts whose prefix is computed, cached in memory, or saved on disk."""

from __future__ import annotations

import argparse

from infeng_bench import options
from infeng_bench.engine import prefix

NAME = "prefix"

ROUNDS = 4


def configure(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "--prompt", options.positive, 1024, "N", "tokens shared")
    options.add(parser, "--tail", options.positive, 1, "N", "tokens after them")
    options.add_measurement(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Measure one engine, then a second one that starts with the saved prefixes; print and write."""
    figures, record, _ = prefix.in_process(arguments, arguments.prompt, arguments.tail, arguments.rounds, NAME)
    record |= figures | {"rounds": arguments.rounds, "prompt": arguments.prompt, "tail": arguments.tail}
    return options.deliver(record, arguments, options.listed(prefix.SHOWN, {NAME: record}))
