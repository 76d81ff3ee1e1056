"""`infeng bench pace`: inter-token latency beside the prefill of a long prompt, and the prompt's delay."""

from __future__ import annotations

import argparse

from infeng_bench import options
from infeng_bench.engine import pace
from infeng_bench.engine.place import IN_PROCESS
from infeng_bench.engine.session import alone

NAME = "pace"

ROUNDS = 3


def configure(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "--rows", options.positive, 4, "N", "sequences that decode")
    options.add(parser, "--prompt", options.positive, 1024, "N", "tokens of the prompt")
    options.add(parser, "--step-ms", options.positive, 100, "MS", "scheduler.step_ms that is compared")
    options.add_measurement(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Measure in turn with and without a bound on the time of steps, print and write."""
    sizes = (arguments.rows, arguments.prompt, arguments.step_ms, arguments.rounds)
    found, record = pace.measured(lambda settings: alone(arguments, settings), *sizes, seed=arguments.seed, kind=NAME)
    record |= found[IN_PROCESS] | {"rounds": arguments.rounds}
    record |= {"rows": arguments.rows, "prompt": arguments.prompt, "step_ms": arguments.step_ms}
    return options.deliver(record, arguments, options.listed(pace.SHOWN, {NAME: record}))
