"""`infeng bench simulate --replicas N`: routers before many servers, under the same requests, on a virtual clock."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from infeng_bench import options
from infeng_bench.options import Column
from infeng_bench.reports import results

from infeng_core.api import UsageError, unknown_key_remedy
from infeng_simulate import fleet
from infeng_simulate.fleet import Fleet, Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infeng_ray.router import Router

TABLE = (
    Column("route", "route"),
    Column("loads/request", "loads_per_request", ".3f"),
    Column("prefix hits", "prefix_hits", ".3f"),
    Column("wait mean s", "wait_mean_s", ".3g"),
    Column("p99", "wait_p99_s", ".3g"),
    Column("max", "wait_max_s", ".3g"),
    Column("load/mean", "highest_load", ".2f"),
    Column("hottest on", "hottest_replicas", "d"),
    Column("remapped", "remapped", ".4f"),
)
MOST_REPLICAS, MOST_REQUESTS = 10_000, 10_000_000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of a fleet."""
    group = parser.add_argument_group("many servers", "no model is needed: a replica has slots, and adapters in memory")
    options.add(group, "--replicas", options.natural, 0, "N", "simulate N servers behind a router (0: one engine)")
    options.add(group, "--route", options.words, None, "R,R", "routers that are compared (all of infeng-ray)")
    options.add(group, "--adapters", options.positive, 10_000, "A", "adapters (10000)")
    options.add(group, "--zipf", options.up_to(16), 0.9, "Z", "adapter k has weight 1/(k+1)^Z (0.9)")
    options.add(group, "--slots", options.positive, 16, "N", "requests that a replica answers at a time (16)")
    options.add(group, "--resident", options.positive, 16, "N", "adapters, and prompts' beginnings, that it keeps (16)")
    options.add(group, "--offered", _load, 0.6, "L", "requests that come, as a share of what slots can answer (0.6)")
    options.add(group, "--base-share", options.up_to(1), 0.0, "S", "share of the requests to the base model (0)")
    options.add(group, "--prefixes", options.positive, 1000, "N", "beginnings of the base's prompts (1000)")


def _load(text: str) -> float:
    return options.number(text, "above 0", sys.float_info.max)


def run(arguments: argparse.Namespace) -> int:
    """Simulate every router, print and write; raises UsageError, also if infeng-ray is missing."""
    begin = time.monotonic()
    routers = _routers(arguments)
    if arguments.replicas > MOST_REPLICAS or arguments.requests > MOST_REQUESTS:
        why = f"more than {MOST_REPLICAS} replicas or {MOST_REQUESTS} requests"
        raise UsageError("--replicas, --requests", why, "give fewer")
    simulated = Fleet(
        arguments.replicas,
        arguments.slots,
        arguments.resident,
        arguments.adapters,
        arguments.zipf,
        arguments.offered,
        duration=4.0,
        load_seconds=0.05,
        base=arguments.base_share,
        prefixes=arguments.prefixes,
    )
    requests = fleet.draw(simulated, arguments.requests, arguments.seed)
    found: dict[str, dict[str, Any]] = {}
    for name in options.progress(list(routers), "simulate"):
        found[name] = Run(simulated, requests, routers[name](arguments.seed)).figures()
    context = {name: getattr(simulated, name) for name in Fleet.__dataclass_fields__}
    figures = {"routes": found, "seconds": time.monotonic() - begin}
    result = results.record("simulate", figures, seed=arguments.seed, num_requests=arguments.requests, fleet=context)
    lines = options.columns(options.table(TABLE, [{"route": name, **one} for name, one in found.items()]))
    options.deliver(result, arguments, lines)
    return 0


def _routers(arguments: argparse.Namespace) -> Mapping[str, type[Router]]:
    """Return the routers of ``--route``; raises UsageError."""
    try:
        from infeng_ray.router import ROUTES
    except ImportError:
        raise UsageError("--replicas", "routers come from another wheel", "install the wheel infeng-ray") from None
    names = list(dict.fromkeys(arguments.route or ROUTES))
    for name in names:
        if name not in ROUTES:
            raise UsageError(f"--route {name}", "there is no such router", unknown_key_remedy(name, ROUTES))
    return {name: ROUTES[name] for name in names}
