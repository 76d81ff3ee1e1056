"""The same traffic on an engine in this process, then on a server: tenants, adapters, overload, any load."""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from infeng_bench.engine.running import greedy
from infeng_bench.http import own_server, paired
from infeng_bench.http.client import Due, Effort, Reply
from infeng_bench.http.overhead_figures import IN_PROCESS
from infeng_bench.http.paired import SIDES, PairedEngines, both
from infeng_bench.load import in_process, load_options, outcomes
from infeng_bench.load.kinds import Load
from infeng_bench.load.outcomes import Outcomes
from infeng_bench.load.serving import Job
from infeng_bench.load.traffic import GREEDY, Traffic, draw
from infeng_bench.models import adapters
from infeng_bench.stats.summary import percentile
from infeng_core.api import UsageError

Figures = dict[str, dict[str, Any]]  # by side

POLICIES = ("fair", "fcfs")  # policies of the tenants measurement; the second is the baseline
PROBE_SECONDS = 0.25  # between two calls of /health
PROBE = -1  # ``Due.place`` of a call of /health
REFUSED = (429, 503)
DRAWN = 512  # requests whose mean lengths determine the rate of an overload
ROOM = ("--max-requests", "65536", "--max-connections", "65536")  # the in-process engine has no such bounds either

_COUNT = re.compile(rb'"completion_tokens":(\d+)')
_CACHED = re.compile(rb'"cached_tokens":(\d+)')


@dataclass(frozen=True)
class Run:
    """The outcome of traffic on one side."""

    outcomes: Outcomes
    memory: Sequence[int]  # resident bytes, four times a second
    effort: Effort | None = None  # of the client over HTTP
    health: Sequence[float] = ()  # seconds of each call of /health


def any_load(arguments: argparse.Namespace) -> tuple[Figures, dict[str, Any]]:
    """Return the usual figures of traffic by side, and the record of the run."""
    with both(arguments, load_options.AS_SERVED, more=ROOM) as sides:
        traffic = drawn(arguments, sides)
        wanted = load_options.targets(arguments)
        found = {}
        for side in SIDES:
            run = _run(side, sides, traffic)
            told = outcomes.figures(run.outcomes, wanted)
            found[side] = {**told, "refused": sum(told["refused"].values()), **_efforts(run)}
        return found, _record(arguments, sides, traffic)


def tenants(arguments: argparse.Namespace) -> tuple[Figures, dict[str, Any]]:
    """Return the latencies of the other tenants with and without the greedy one, under `fair` and `fcfs`.

    Each tenant has an API key of its own.
    """
    names = [GREEDY, *(f"other{k}" for k in range(int(arguments.load["others"])))]
    keys = {name: f"key-of-{name}" for name in names}
    found: Figures = {side: {} for side in SIDES}
    record: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="infeng-keys-") as folder:
        file = Path(folder) / "keys"
        file.write_text("".join(f"{key} {name}\n" for name, key in keys.items()), encoding="utf-8")
        more = [*ROOM, "--api-keys", str(file)]
        for policy in POLICIES:
            settings = {**load_options.AS_SERVED, "scheduler__use": policy}
            with both(arguments, settings, more=more, key=keys[GREEDY]) as sides:
                traffic = drawn(arguments, sides)
                arguments.load = _at_rate(arguments.load, traffic.rate)  # so that both policies get the same requests
                for side in SIDES:
                    beside = _run(side, sides, traffic, keys)
                    told = _fairness(beside, load_options.targets(arguments))
                    if policy == POLICIES[0]:
                        alone = _run(side, sides, traffic.without(GREEDY), keys).outcomes
                        found[side] |= {**_ttft("alone", alone), **_efforts(beside)}
                        found[side]["victim_p99_ttft_ratio"] = outcomes.victims_ratio(beside.outcomes, alone)
                        found[side] |= told
                    else:
                        found[side] |= {f"fcfs_{name}": value for name, value in told.items()}
                record = _record(arguments, sides, traffic)
    for one in found.values():
        one["throughput_over_fcfs"] = one["request_throughput"] / one["fcfs_request_throughput"]
    return found, record


def zipf(arguments: argparse.Namespace) -> tuple[Figures, dict[str, Any]]:
    """Return the TTFT of requests with adapters when all adapters are resident, and when half of them fit."""
    count = int(arguments.load["adapters"])
    shape = arguments.synthetic or arguments.model
    made = adapters.random_adapters(shape, count, arguments.rank, arguments.targets)
    found: Figures = {side: {} for side in SIDES}
    record: dict[str, Any] = {}
    for name, places in (("resident", count), ("half", (count + 1) // 2)):
        settings = {**load_options.AS_SERVED, "adapters__max_resident": places}
        with both(arguments, settings, made, ROOM) as sides:
            _touch(sides, list(made))
            traffic = drawn(arguments, sides)
            arguments.load = _at_rate(arguments.load, traffic.rate)
            for side in SIDES:
                run = _run(side, sides, traffic)
                found[side] |= {**_ttft(name, run.outcomes), **_efforts(run)}
            record = _record(arguments, sides, traffic, places=places)
    for one in found.values():
        one["ttft_ratio"] = one["half_median_ttft_ms"] / one["resident_median_ttft_ms"]
    return found, record


def overload(arguments: argparse.Namespace) -> tuple[Figures, dict[str, Any]]:
    """Return latencies of refusals and of /health, and memory, at several times the server's capacity."""
    load = arguments.load
    if load.needs_capacity:  # measured on a server that refuses nothing: a closed loop sends all at once
        with both(arguments, load_options.AS_SERVED) as sides:
            arguments.load = _at_rate(load, drawn(arguments, sides, DRAWN).rate)
    settings = {**load_options.AS_SERVED, "scheduler__max_waiting": int(load["waiting"])}
    with both(arguments, settings) as sides:
        rate = float(arguments.load["rate"])
        traffic = drawn(arguments, sides, max(1, round(rate * load["seconds"])))
        found = {}
        for side in SIDES:
            run = _run(side, sides, traffic, streams=False, has_probes=True)
            found[side] = {**_overloaded(run), **_efforts(run)}
            if load.needs_capacity:
                found[side]["capacity"] = rate / load["load"]
        return found, _record(arguments, sides, traffic)


# ------------------------------------------------------------------------------------------------------- requests ---


def drawn(arguments: argparse.Namespace, sides: PairedEngines, count: int | None = None) -> Traffic:
    """Return the requests of the load; a rate of ``auto`` is a share of the server's closed-loop throughput.

    Raises UsageError for urgent requests: the client does not send priorities.
    """
    if arguments.load["urgent"]:
        raise UsageError("--load", "requests over HTTP have no priority here", "leave urgent=SHARE out")
    return draw(arguments.load, count or arguments.requests, arguments.seed, sides.context, sides.capacity)


def _at_rate(load: Load, rate: float) -> Load:
    """Return the load with a rate of ``auto`` replaced by ``rate``."""
    if not load.needs_capacity or load.kind == "trace":
        return load
    return replace(load, values={**load.values, "rate": rate})


def _touch(sides: PairedEngines, names: Sequence[str]) -> None:
    """Use each adapter once on both sides, so that first-use costs are not measured."""
    with sides.client() as client:
        for name in names:
            sides.engine.generate([1, 1, 1, 1], greedy(2), adapters=name)
            client.whole(sides.server.address.request(own_server.wire(), Job(0.0, [1, 1, 1, 1], 2, name)))


def _run(
    side: str,
    sides: PairedEngines,
    traffic: Traffic,
    keys: Mapping[str, str] | None = None,
    *,
    streams: bool = True,
    has_probes: bool = False,
) -> Run:
    """Send traffic to one side. keys: API keys by tenant. streams: whether answers stream. has_probes: call /health."""
    if side == IN_PROCESS:
        with paired.resident("self") as memory:
            return Run(in_process.drive(sides.engine, traffic, sides.vocab), memory)
    dues = list(_dues(sides, traffic, keys or {}, streams))
    if has_probes:
        times = np.arange(0.0, float(traffic.at[-1]), PROBE_SECONDS)
        dues += [Due(at, sides.server.address.look("/health"), PROBE) for at in times.tolist()]
        dues.sort(key=lambda due: due.at)
    with sides.client() as client, paired.resident(sides.server.pid) as memory:
        replies, effort = client.run(dues)
    health = [reply.ended - reply.due.at for reply in replies if reply.due.place == PROBE]
    return Run(_outcomes(traffic, [reply for reply in replies if reply.due.place != PROBE]), memory, effort, health)


def _dues(sides: PairedEngines, traffic: Traffic, keys: Mapping[str, str], streams: bool) -> Iterator[Due]:
    wires = {tenant: own_server.wire(streams=streams, key=keys.get(tenant, "")) for tenant in traffic.tenants}
    for place, arrival in enumerate(traffic):
        job = Job(arrival.at, traffic.ids(place, sides.vocab), arrival.new, arrival.adapter)
        yield Due(arrival.at, sides.server.address.request(wires[arrival.tenant], job), place)


def _outcomes(traffic: Traffic, replies: Sequence[Reply]) -> Outcomes:
    found = Outcomes.of(traffic)
    for reply in replies:
        place, pieces = reply.due.place, reply.pieces
        count = _COUNT.findall(reply.tail)
        if reply.status in REFUSED:
            found.refusals.append(reply.ended - reply.due.at)
            found.refuse(f"http {reply.status}")
        elif reply.status == 200 and reply.is_whole and count and int(count[-1]) == traffic.new[place]:
            found.first[place], found.last[place] = pieces[0], pieces[-1]
            found.tokens[place], found.is_done[place] = int(count[-1]), True
            found.cached[place] = int((_CACHED.findall(reply.tail) or [b"0"])[-1])
            found.gaps.add_all(sorted(np.diff(pieces).tolist()), 1)
        else:
            found.refuse(f"http {reply.status}" if reply.status != 200 else "cut short")
    return found


# -------------------------------------------------------------------------------------------------------- figures ---


def _ttft(name: str, served: Outcomes) -> dict[str, float]:
    seconds = served.ttft
    if not len(seconds):
        raise UsageError("serve", f"no request had a token ({served.refused})", "look at the server's log")
    return {
        f"{name}_median_ttft_ms": 1000 * float(np.median(seconds)),
        f"{name}_p99_ttft_ms": 1000 * float(np.quantile(seconds, 0.99)),
    }


def _fairness(run: Run, wanted: outcomes.Targets) -> dict[str, Any]:
    served = run.outcomes
    victims = _ttft("beside", served.only(served.traffic.tenant != list(served.traffic.tenants).index(GREEDY)))
    told = outcomes.figures(served, wanted)
    usual = {name: told[name] for name in ("jain", "request_throughput", "completed")}
    return {**victims, **usual, "lost": len(served.traffic) - told["completed"]}


def _overloaded(run: Run) -> dict[str, Any]:
    served = run.outcomes
    answered, refused = int(served.is_done.sum()), len(served.refusals)
    quarter = max(1, len(run.memory) // 4)
    found: dict[str, Any] = {
        "request_rate": served.traffic.rate,
        "answered": answered,
        "refused": refused,
        "lost": len(served.traffic) - answered - refused,
    }
    for name, seconds in (("refusal", served.refusals), ("health", run.health)):
        if len(seconds):
            found |= {f"{share}_{name}_ms": 1000 * percentile(seconds, q) for share, q in (("p50", 0.5), ("p99", 0.99))}
            found[f"max_{name}_ms"] = 1000 * max(seconds)
    if answered:
        found["p99_e2el_ms"] = outcomes.delays(served.only(served.is_done))["p99_e2el_ms"]
    if run.memory:
        found["memory_first_quarter_bytes"] = max(run.memory[:quarter])
        found["memory_last_quarter_bytes"] = max(run.memory[-quarter:])
    return found


def _efforts(run: Run) -> dict[str, float]:
    if run.effort is None:
        return {}
    return {"client_cpu_share": run.effort.cpu_share, "client_lag_p99_ms": 1000 * run.effort.lag_p99}


def _record(arguments: argparse.Namespace, sides: PairedEngines, traffic: Traffic, **more: Any) -> dict[str, Any]:
    facts = load_options.load_facts(arguments, traffic)
    return sides.session.record("serve-load", {}, seed=arguments.seed, **facts, **more)
