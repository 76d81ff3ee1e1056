"""`infeng bench pace`: inter-token latency beside the prefill of a long prompt, and the prompt's delay."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from infeng_bench import options
from infeng_bench.engine import pace
from infeng_bench.engine.place import IN_PROCESS
from infeng_bench.engine.session import alone

NAME = "pace"

ROUNDS = 3


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=options.positive, default=4, metavar="N", help="sequences that decode")
    parser.add_argument("--prompt", type=options.positive, default=1024, metavar="N", help="tokens of the prompt")
    help = "scheduler.step_ms that is compared"
    parser.add_argument("--step-ms", type=options.positive, default=100, metavar="MS", help=help)
    options.add_measurement(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Measure in turn with and without a bound on the time of steps, print and write."""
    sizes = (arguments.rows, arguments.prompt, arguments.step_ms, arguments.rounds)
    found, record = pace.measured(lambda settings: alone(arguments, settings), *sizes, seed=arguments.seed, kind=NAME)
    record |= found[IN_PROCESS] | {"rounds": arguments.rounds}
    record |= {"rows": arguments.rows, "prompt": arguments.prompt, "step_ms": arguments.step_ms}
    options.deliver(record, arguments, options.columns(_table(record)))
    return 0


def _table(figures: dict[str, Any]) -> Iterator[list[str]]:
    yield ["time between tokens, ms", "median", "p99"]
    yield ["steps of bounded time", f"{figures['median_itl_ms']:.1f}", f"{figures['p99_itl_ms']:.1f}"]
    yield ["any step", "", f"{figures['p99_itl_ms_unbounded']:.1f}"]
    yield ["tokens of the prompt/s", f"{figures['prefill_tokens_per_s']:.1f}"]
    yield ["tokens decoded beside it/s", f"{figures['decode_tokens_per_s']:.1f}"]
    yield ["the prompt is later by", f"{figures['prefill_loss']:.0%}"]
    yield ["all tokens/s are less by", f"{figures['total_loss']:.0%}"]
