"""The options of a load and of its latency targets, and their record in results."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from typing import Any

from infeng_bench import options
from infeng_bench.load.kinds import Load, help_text
from infeng_bench.load.outcomes import Targets
from infeng_bench.load.traffic import Traffic

AS_SERVED: Mapping[str, object] = {"kv_cache__prefix": None, "scheduler__step_ms": None}
"""Restores the engine's defaults that ``options.config`` changes for other measurements."""


def add_load(parser: argparse.ArgumentParser, requests: int, clients: Callable[[str], Any] = options.positive) -> None:
    """Add the options of requests and of latency targets. clients: the type of ``--clients``."""
    parser.epilog = f"loads and their defaults:\n{help_text()}"
    targets = Targets()
    options.add(parser, "--load", Load.parse, "poisson", "L", "traffic, see below")
    options.add(parser, "--requests", options.positive, requests, "N", "how many requests")
    help = "a closed loop: at most N in flight, the next one comes when one has gone"
    parser.add_argument("--clients", type=clients, metavar="N", help=help)
    options.add_seed(parser, "everything drawn")
    for name, what in (("ttft", "the first token"), ("tpot", "each token after it")):
        default, help = 1000 * getattr(targets, name), f"milliseconds to {what} for goodput"
        parser.add_argument(f"--{name}-target", type=options.rate, default=default, metavar="MS", help=help)
    help = "a request starved that waited X times the median and longer than the TTFT target"
    parser.add_argument("--patience", type=options.rate, default=targets.patience, metavar="X", help=help)


def targets(arguments: argparse.Namespace) -> Targets:
    """Return the latency targets of the options."""
    return Targets(arguments.ttft_target / 1000, arguments.tpot_target / 1000, arguments.patience)


def load_facts(arguments: argparse.Namespace, traffic: Traffic) -> dict[str, Any]:
    """Return the facts of the requests for a result."""
    wanted = targets(arguments)
    return {
        "load": str(arguments.load),
        "num_requests": len(traffic),
        "clients": arguments.clients,
        "request_rate": None if arguments.clients or math.isinf(traffic.rate) else traffic.rate,
        "targets": {"ttft_ms": 1000 * wanted.ttft, "tpot_ms": 1000 * wanted.tpot, "patience": wanted.patience},
    }
