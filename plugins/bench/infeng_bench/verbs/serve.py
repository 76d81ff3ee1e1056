"""`infeng bench serve`: an engine or a server under traffic: latencies, goodput, fairness."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from tqdm import tqdm

from infeng_bench import beside, options
from infeng_bench.costs import calibration, cost_source
from infeng_bench.costs.activity import Activity
from infeng_bench.costs.machine import Machine
from infeng_bench.costs.step_costs import StepCosts
from infeng_bench.engine.place import EnginePlace
from infeng_bench.engine.running import greedy
from infeng_bench.engine.session import Session, opened
from infeng_bench.http import client, completions, measured_loads, overhead
from infeng_bench.http.wire import Address
from infeng_bench.load import load_options, outcomes
from infeng_bench.load.kinds import Load, check_traffic
from infeng_bench.load.outcomes import Outcomes
from infeng_bench.load.place import Place
from infeng_bench.load.traffic import Traffic, draw
from infeng_bench.models import adapters
from infeng_bench.reports import results
from infeng_bench.reports.results import OURS
from infeng_bench.stats.rates import rows_of_traffic
from infeng_core.api import UsageError

NAME = "serve"

KEY = "OPENAI_API_KEY"


def configure(parser: argparse.ArgumentParser) -> None:
    load_options.add_load(parser, 64, options.counts)
    parser.set_defaults(load=None)
    options.add(parser, "--url", str, None, "U", "a server with OpenAI's API, such as http://localhost:8000")
    help = f"of the server's models the base's name (default: the first listed); {KEY} is sent as its key"
    parser.add_argument("--served-model", metavar="NAME", help=help)
    overhead.configure(parser)
    options.add_adapters(parser.add_argument_group("adapters of a zipf load and of --adapters, made at random"))
    cost_source.add_costs(parser)
    options.add(parser, "--fit", str, None, "FILE", "write what the steps took, for infeng bench simulate --costs FILE")
    options.add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    others = [name for name in beside.engines(arguments.engines) if name != OURS]
    if others and not (arguments.http and others == list(overhead.PEERS)):
        remedy = f"give --http --engines {OURS},{overhead.PEERS[0]}"
        raise UsageError("--engines", f"no server of {', '.join(others)} is started here", remedy)
    arguments.peer = arguments.peer or next(iter(others), None)
    if arguments.http:
        if arguments.url:
            raise UsageError("--http", "it starts a server of its own", "leave --url out, or --http")
        return overhead.run(arguments) if arguments.load is None else measured_loads.run(arguments)
    arguments.load = arguments.load or Load.parse("poisson")
    check_traffic(arguments.load)
    if arguments.clients:
        if len(arguments.clients) > 1:
            raise UsageError("--clients", "several numbers are measured with --http only", "give one")
        arguments.clients = arguments.clients[0]
    result = _behind_url(arguments) if arguments.url else _in_process(arguments)
    return options.deliver(result, arguments, options.columns(_table(result)))


def _in_process(arguments: argparse.Namespace) -> dict[str, Any]:
    with opened(arguments, **load_options.AS_SERVED) as session:
        engine = session.engine
        costs = _costs(arguments, session)
        machine = None if costs is None else Machine(engine.limits, costs)
        context = min(engine.limits.context, engine.limits.tokens)
        traffic = _drawn(arguments, context, machine)
        _load_adapters(arguments, session, traffic)
        session.restart()
        with calibration.watched(engine) as watch, EnginePlace(engine, raises=False) as place:
            served = _served(place, arguments, traffic)
        if arguments.fit:
            costs = calibration.measure(engine, more=watch.steps)
            costs.write(arguments.fit)
        found = _figures(arguments, served, watch.activity)
        loads = [engine.adapters[name].load_seconds or 0.0 for name in traffic.adapters]
        if loads:
            found["adapter_swap_ms"] = 1000 * statistics.median(loads)
        return session.record(
            NAME,
            found,
            seed=arguments.seed,
            **load_options.load_facts(arguments, traffic),
            costs=None if costs is None else costs.to_dict(),
        )


def _behind_url(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.model or arguments.synthetic or arguments.fit:
        raise UsageError("--url", "the server has its model already", "leave --model, --synthetic and --fit out")
    address, key = Address.of(arguments.url), os.environ.get(KEY, "")
    listed = completions.models(address, key, arguments.timeout)
    model = arguments.served_model or str(listed[0]["id"])
    context = int(listed[0].get("max_model_len") or client.CONTEXT)
    traffic = _drawn(arguments, context, None)
    if traffic.adapters:
        names = [str(one["id"]) for one in listed if one.get("parent")]
        if len(names) < len(traffic.adapters):
            why = f"{len(traffic.adapters)} adapters are asked for, and the server lists {len(names)}"
            raise UsageError("--load", why, "give fewer with adapters=N, or load more into the server")
        traffic = dataclasses.replace(traffic, adapters=names[: len(traffic.adapters)])
    wire = completions.wire(model, lambda job: key, names_users=True)
    with client.Client(arguments.url, address, wire, arguments.timeout, context=context) as place:
        served = _served(place, arguments, traffic)
    return results.record(
        NAME,
        _figures(arguments, served, None),
        model=model,
        url=arguments.url,
        seed=arguments.seed,
        **load_options.load_facts(arguments, traffic),
    )


def _costs(arguments: argparse.Namespace, session: Session) -> StepCosts | None:
    """Return the step costs for a rate of ``auto``; None for another load."""
    if arguments.clients or not arguments.load.needs_capacity:
        return None
    engine = session.engine
    return cost_source.find(arguments, engine.model.config, lambda: calibration.measure(engine))


def _drawn(arguments: argparse.Namespace, context: int, machine: Machine | None) -> Traffic:
    load = arguments.load
    capacity = None if machine is None else machine.capacity
    if arguments.clients:  # a closed loop ignores arrival times
        capacity = _at_once
    return draw(load, arguments.requests, arguments.seed, context, capacity)


def _at_once(prompt: float, new: float) -> float:
    return math.inf


def _load_adapters(arguments: argparse.Namespace, session: Session, traffic: Traffic) -> None:
    """Load the adapters of the traffic; as many as fit in memory answer a short request."""
    engine = session.engine
    for number, name in enumerate(traffic.adapters):
        path = adapters.peft_directory(engine.model.config, arguments.rank, arguments.targets, number)
        engine.adapters.load(name, path)
    for name in traffic.adapters[: engine.config.adapters.most_resident]:
        engine.generate([1, 1, 1, 1], greedy(2), adapters=name)


def _figures(arguments: argparse.Namespace, served: Outcomes, activity: Activity | None) -> dict[str, Any]:
    wanted = load_options.targets(arguments)
    found = outcomes.figures(served, wanted)
    if not found["completed"]:
        reasons = ", ".join(f"{count} x {why}" for why, count in served.refused.items())
        raise UsageError("serve", f"no request was answered ({reasons})", "look at the engine's or the server's log")
    if activity is not None:
        found |= activity.figures(found["duration"])
    return {**found, **outcomes.groups(served, wanted), "ttft_curve_ms": outcomes.ttft_curve(served)}


def _served(place: Place, arguments: argparse.Namespace, traffic: Traffic) -> Outcomes:
    """Send all requests and return what became of them."""
    is_closed = bool(arguments.clients)
    jobs = list(traffic.jobs(place.vocab, is_closed=is_closed))
    with tqdm(total=len(jobs), desc="requests", leave=False, disable=None) as bar:
        replies, _ = place.run(jobs, arguments.clients or math.inf, bar.update)
    return Outcomes.of(replies, traffic, is_closed=is_closed)


def _table(result: Mapping[str, Any]) -> Iterator[list[str]]:
    yield from rows_of_traffic(result)
    for why, count in result["refused"].items():
        yield [f"refused: {why}", f"{count}"]
    wanted = result["targets"]
    yield ["goodput/s", f"{result['goodput']:.2f} (ttft {wanted['ttft_ms']:g} ms, tpot {wanted['tpot_ms']:g} ms)"]
    yield ["starved", f"{result['starved']}"]
    for name, one in result.get("per_tenant", {}).items():
        if one["completed"]:
            yield [f"tenant {name}", f"{one['requests']} requests, ttft p99 {one['p99_ttft_ms']:.1f} ms"]
