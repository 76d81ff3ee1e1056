"""The same traffic on an engine in this process, then on a server: tenants, adapters, overload, any load."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from infeng_bench.engine.place import IN_PROCESS
from infeng_bench.http import paired
from infeng_bench.http.client import Look
from infeng_bench.http.paired import SIDES, PairedEngines, both
from infeng_bench.load import load_options, outcomes
from infeng_bench.load.kinds import Load
from infeng_bench.load.outcomes import Outcomes
from infeng_bench.load.place import Effort
from infeng_bench.load.requests import Job
from infeng_bench.load.traffic import GREEDY, Traffic, draw
from infeng_bench.models import adapters
from infeng_bench.stats.summary import percentile
from infeng_core.api import UsageError

Figures = dict[str, dict[str, Any]]  # by side

POLICIES = ("fair", "fcfs")  # policies of the tenants measurement; the second is the baseline
PROBE_SECONDS = 0.25  # between two calls of /health
DRAWN = 512  # requests whose mean lengths determine the rate of an overload
ROOM = ("--max-requests", "65536", "--max-connections", "65536")  # the in-process engine has no such bounds either


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
            with both(arguments, settings, more=more, key=lambda job: keys[job.tenant or GREEDY]) as sides:
                traffic = drawn(arguments, sides)
                arguments.load = _at_rate(arguments.load, traffic.rate)  # so that both policies get the same requests
                for side in SIDES:
                    beside = _run(side, sides, traffic)
                    told = _fairness(beside, load_options.targets(arguments))
                    if policy == POLICIES[0]:
                        alone = _run(side, sides, traffic.without(GREEDY)).outcomes
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
    with both(arguments, settings, streams=False) as sides:
        rate = float(arguments.load["rate"])
        traffic = drawn(arguments, sides, max(1, round(rate * load["seconds"])))
        found = {}
        for side in SIDES:
            run = _run(side, sides, traffic, has_probes=True)
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
    for opened in sides.places.values():
        with opened() as place:
            for name in names:
                place.whole(Job(0.0, [1, 1, 1, 1], 2, name))


def _run(side: str, sides: PairedEngines, traffic: Traffic, *, has_probes: bool = False) -> Run:
    """Send traffic to one side. has_probes: call /health meanwhile, over HTTP."""
    with sides.places[side]() as place, paired.resident(sides.pid(side)) as memory:
        jobs = list(traffic.jobs(place.vocab))
        if has_probes and side != IN_PROCESS:
            times = np.arange(0.0, float(traffic.at[-1]), PROBE_SECONDS)
            jobs += [Look(at, (), 0, path="/health") for at in times.tolist()]
            jobs.sort(key=lambda job: job.at)
        replies, effort = place.run(jobs)
    health = [reply.ended - reply.job.at for reply in replies if isinstance(reply.job, Look)]
    answers = [reply for reply in replies if not isinstance(reply.job, Look)]
    return Run(Outcomes.of(answers, traffic), memory, None if side == IN_PROCESS else effort, health)


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
