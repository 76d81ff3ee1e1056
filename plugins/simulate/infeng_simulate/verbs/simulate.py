"""`infeng bench simulate`: scheduling policies under the same traffic on a virtual clock."""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from infeng_bench import options
from infeng_bench.costs import cost_source
from infeng_bench.costs.machine import Machine
from infeng_bench.load import outcomes
from infeng_bench.load.load_options import AS_SERVED, add_load, load_facts, targets
from infeng_bench.load.outcomes import Outcomes, Targets, victims_ratio
from infeng_bench.load.traffic import GREEDY, Traffic, draw
from infeng_bench.models import model_shape
from infeng_bench.options import Column
from infeng_bench.reports import results

from infeng_core.api import POLICIES, EngineConfig, Plugins, UsageError
from infeng_core.api.engines import Limits, Schedulers
from infeng_core.api.formats import ModelConfig, format_lookup
from infeng_core.api.kernels import KvCache, detect
from infeng_simulate import measured_costs
from infeng_simulate.simulator import PreemptedError, Simulation, simulate
from infeng_simulate.verbs import fleet

NAME = "simulate"

BLOCK = 16  # positions
TABLE = (
    Column("policy", "policy"),
    Column("requests/s", "request_throughput", ".3g"),
    Column("new tokens/s", "output_throughput", ".4g"),
    Column("ttft ms", "p50_ttft_ms", ".0f"),
    Column("p99", "p99_ttft_ms", ".0f"),
    Column("itl p99", "p99_itl_ms", ".0f"),
    Column("goodput", "goodput", ".3g"),
    Column("jain", "jain", ".3f"),
    Column("victims", "victim_p99_ttft_ratio", ".2f"),
    Column("starved", "starved", "d"),
    Column("preempted", "preemptions", "d"),
)
WITHOUT_PREFIXES: Mapping[str, object] = {"kv_cache__prefix": False}
PARALLEL = 5000
"""Fewest requests for which policies are simulated in parallel processes, which take time to start."""
AUTO_SEQUENCES = 8  # sequences of full context for which kv_cache.memory: auto makes room if memory allows


def configure(parser: argparse.ArgumentParser) -> None:
    add_load(parser, 10_000)
    options.add(parser, "--policies", options.words, None, "P,P", "schedulers, compared on the same requests")
    help = "adapters are activated ones (aLoRA), invoked TOKENS before the end of each prompt; 0: plain ones"
    options.add(parser, "--invocation", options.natural, 0, "TOKENS", help)
    cost_source.add_costs(parser)
    fleet.configure(parser)
    options.add_run(parser, options.REAL, "--html")


def run(arguments: argparse.Namespace) -> int:
    """Simulate every policy, print and write."""
    if arguments.replicas:
        return fleet.run(arguments)
    begin = time.monotonic()
    config = options.config(arguments, **AS_SERVED)
    plugins = Plugins.discover(config)
    shape = model_shape.model_shape(arguments, config, format_lookup(plugins))
    policies = list(dict.fromkeys(arguments.policies or [config.scheduler.use]))
    for name in policies:
        plugins.get(POLICIES, name)  # raises for an unknown name
    costs = cost_source.find(arguments, shape.config, lambda: measured_costs.kept(arguments, config, shape))
    engine = Machine(limits(config, shape.config), costs, config.adapters.most_resident, arguments.invocation)
    traffic = draw(arguments.load, arguments.requests, arguments.seed, _context(engine.limits), engine.capacity)
    found = _all(arguments, policies, traffic, engine)
    result = results.record(
        NAME,
        {"policies": found, "seconds": time.monotonic() - begin},
        model=shape.name,
        format=shape.format,
        kv_dtype=config.kv_cache.dtype,
        threads=options.threads(arguments),
        seed=arguments.seed,
        **load_facts(arguments, traffic),
        costs=costs.to_dict(),
        limits={name: getattr(engine.limits, name) for name in ("max_rows", "max_segments", "context", "kv_blocks")},
    )
    lines_of = [{"policy": name, **one} for name, one in found.items()]
    lines = [f"{arguments.load}", f"costs: {costs.source}", *options.columns(options.table(TABLE, lines_of))]
    return options.deliver(result, arguments, lines)


def _all(
    arguments: argparse.Namespace, policies: Sequence[str], traffic: Traffic, engine: Machine
) -> dict[str, dict[str, Any]]:
    """Return the figures of each policy, simulated in parallel processes for many requests."""
    workers = min(len(policies), detect().place(EngineConfig().threads).workers)
    if workers == 1 or len(traffic) < PARALLEL:
        return {name: _one(arguments, name, traffic, engine) for name in options.progress(policies, NAME)}
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(_one, arguments, name, traffic, engine) for name in policies]
        waited = options.progress(running, NAME)
        return {name: one.result() for name, one in zip(policies, waited, strict=True)}


def _one(arguments: argparse.Namespace, policy: str, traffic: Traffic, engine: Machine) -> dict[str, Any]:
    """Simulate one policy; return its figures."""
    begin = time.monotonic()
    config, alike = (options.config(arguments, **{**AS_SERVED, **more}) for more in ({}, WITHOUT_PREFIXES))
    make = Plugins.discover(config).get(POLICIES, policy)
    clients = arguments.clients or math.inf

    def served(some: Traffic) -> Simulation:
        if not some.prefix_length:  # only a preempted request could hit the prefix cache
            with contextlib.suppress(PreemptedError):
                own = Schedulers(alike, engine.limits, make, "simulated", None)
                return simulate(some, own, engine, clients=clients, may_preempt=False)
        return simulate(some, Schedulers(config, engine.limits, make, "simulated", None), engine, clients=clients)

    simulated = served(traffic)
    alone = None
    if GREEDY in traffic.tenants and len(traffic.tenants) > 1:
        alone = served(traffic.without(GREEDY)).outcomes
    return {**figures(simulated, alone, targets(arguments)), "seconds": time.monotonic() - begin}


def figures(simulated: Simulation, alone: Outcomes | None, wanted: Targets) -> dict[str, Any]:
    """Return the figures of one policy; alone: the outcomes of the same requests without the greedy tenant's."""
    served = simulated.outcomes
    found = outcomes.figures(served, wanted)
    for share in ("p50", "p90", "p99"):
        for name, values in (("ttft", served.ttft), ("wait", _waits(served))):
            found[f"{share}_{name}_ms"] = (
                1000 * float(np.quantile(values, int(share[1:]) / 100)) if len(values) else None
            )
    found["victim_p99_ttft_ratio"] = None if alone is None else victims_ratio(served, alone)
    found |= simulated.activity.figures(found.get("duration", 0.0))
    found["adapter_loads"] = simulated.loads
    found |= outcomes.groups(served, wanted)
    found["ttft_curve_ms"] = outcomes.ttft_curve(served)
    found["timeline"] = simulated.activity.timeline()
    return found


def limits(config: EngineConfig, shape: ModelConfig) -> Limits:
    """Return the limits of an engine of this configuration with enough memory for ``kv_cache.memory: auto``."""
    running = min(config.scheduler.max_running, config.scheduler.max_batch_tokens)
    positions = min(shape.max_positions, config.model.context or shape.max_positions)
    if config.kv_cache.memory == "auto":
        blocks = min(running, AUTO_SEQUENCES) * -(-positions // BLOCK)
    else:
        block = KvCache.bytes_per_block(config.kv_cache.dtype, layers=shape.layers, **shape.cache_heads)
        blocks = config.kv_cache.memory // block
    if blocks < 1:
        raise UsageError("kv_cache.memory", "not one block fits", "set it to more")
    context = min(positions, blocks * BLOCK)
    return Limits(config.scheduler.max_batch_tokens, running, running, context, blocks)


def _context(limits: Limits) -> int:
    return min(limits.context, limits.tokens)


def _waits(served: Outcomes) -> Any:
    return (served.begun - served.arrived)[~np.isnan(served.begun)]
