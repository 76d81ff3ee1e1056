"""`infeng bench prefix`: TTFT of prompts whose prefix is computed, cached in memory, or saved on disk."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from infeng_bench import options
from infeng_bench.engine import prefix

NAME = "prefix"

ROUNDS = 4


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", type=options.positive, default=1024, metavar="N", help="tokens shared")
    parser.add_argument("--tail", type=options.positive, default=1, metavar="N", help="tokens after them")
    options.add_measurement(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Measure one engine, then a second one that starts with the saved prefixes; print and write."""
    figures, record, _ = prefix.in_process(arguments, arguments.prompt, arguments.tail, arguments.rounds, NAME)
    record |= figures | {"rounds": arguments.rounds, "prompt": arguments.prompt, "tail": arguments.tail}
    options.deliver(record, arguments, options.columns(_table(record)))
    return 0


def _table(figures: dict[str, Any]) -> Iterator[list[str]]:
    yield ["first token computed, ms", f"{figures['cold_ttft_ms']:.1f}"]
    yield ["beginning in memory, ms", f"{figures['hit_ttft_ms']:.1f}", f"1/{figures['hit_ratio']:.0f}"]
    yield ["beginning on disk, ms", f"{figures['saved_ttft_ms']:.1f}", f"{figures['prefix_bytes'] / 1e6:.1f} MB"]
    yield ["a step after it, ms", f"{figures['median_itl_ms']:.1f}"]
    if figures["restore_bytes_per_s"]:
        yield ["from disk, GB/s", f"{figures['restore_bytes_per_s'] / 1e9:.2f}"]
