"""A scheduler on a virtual clock: what a step takes follows from its rows, and no model runs."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from infeng_core.api import (
    BlockPool,
    CostModel,
    Limits,
    Policy,
    PrefixCache,
    PrefixTree,
    Request,
    RunningRequest,
    Scheduler,
)

FIXED, ROW = 0.008, 0.001
"""Seconds of a step, and of each of its rows: of a model of a billion weights on a few cores."""


class Job(NamedTuple):
    """A request that comes at a time."""

    at: float
    prompt: int
    new: int
    tenant: str = ""
    adapter: str | None = None
    priority: int = 0
    prefix: int = 0
    """Tokens at the beginning of its prompt that all requests of its tenant share."""


@dataclass
class Outcome:
    """What became of the jobs, in their order, and of the tenants over time."""

    policy: Policy
    first: list[float]
    """Seconds from the arrival to the first token; infinite without any."""
    last: list[float]
    """When it ended."""
    started: list[float]
    sequences: list[RunningRequest]
    seconds: float = 0.0
    tokens: int = 0
    preempted: int = 0
    service: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(lambda: [(0.0, 0.0)]))
    """(when, cost of all it was served by then: 1 for a token of a prompt, 2 for a new one), by tenant."""
    waiting: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    """(when, how many wait after a step), by tenant."""
    gaps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds between two tokens, by tenant."""

    def served(self, tenant: str, begin: float, end: float) -> float:
        """Return the cost of what a tenant was served from one time to another."""
        times, costs = zip(*self.service[tenant], strict=True)
        return float(np.interp(end, times, costs) - np.interp(begin, times, costs))


def make_costs() -> CostModel:
    """Return a model that knows what steps take."""
    others = {"fixed": FIXED, "sampled": 0.0, "attended": 0.0, "adapters": 0.0}
    return CostModel({**dict.fromkeys(CostModel().names, ROW), **others})


def run(
    make: Callable[[Limits], Policy],
    jobs: Iterable[Job],
    limits: Limits,
    *,
    until: float = float("inf"),
    step_seconds: float | None = 0.1,
    prefixes: bool = False,
    watch: Callable[[Scheduler, float], None] = lambda scheduler, now: None,
) -> Outcome:
    """Serve jobs until all have ended, or until a time. watch: called after every step."""
    jobs = list(jobs)
    pool = BlockPool(limits.kv_blocks)
    policy = make(limits)
    scheduler = Scheduler(
        limits,
        pool,
        policy,
        step_seconds=step_seconds,
        costs=make_costs(),
        prefixes=PrefixCache(PrefixTree(pool), lambda one: one.request.tenant.encode()) if prefixes else None,
    )
    sequences = [_sequence(place, job) for place, job in enumerate(jobs)]
    endless = [float("inf")] * len(jobs)
    outcome = Outcome(policy, endless.copy(), endless.copy(), endless.copy(), sequences)
    arrivals = deque(sorted(range(len(jobs)), key=lambda place: jobs[place].at))
    now, latest, costs = 0.0, {}, defaultdict(float)
    while now < until:
        while arrivals and jobs[arrivals[0]].at <= now:
            sequence = sequences[arrivals.popleft()]
            scheduler.add(sequence, now)
        batch = scheduler.next_batch(now)
        if batch is None:
            if not arrivals:
                break
            now = jobs[arrivals[0]].at
            continue
        now += FIXED + ROW * len(batch.tokens)
        drawn, ended = [], []
        for sequence, begin, end, pos0, sampled, _ in batch.segments:
            tenant = sequence.request.tenant
            fresh = min(pos0 + end - begin, sequence.prompt_length) - max(pos0, latest.get(sequence, 0))
            costs[tenant] += max(0, fresh)
            latest[sequence] = max(latest.get(sequence, 0), pos0 + end - begin)
            outcome.started[sequence.id] = sequence.started
            if not sampled:
                continue
            drawn.append(sequence)
            costs[tenant] += 2
            outcome.tokens += 1
            if sequence.length == sequence.prompt_length:
                outcome.first[sequence.id] = now - sequence.arrived
            else:
                outcome.gaps[tenant].append(now - outcome.last[sequence.id])
            outcome.last[sequence.id] = now
            if sequence.length + 1 == len(sequence.tokens):
                ended.append(sequence)
        scheduler.commit(batch, [[1]] * len(drawn), ended, now)
        for tenant, cost in costs.items():
            outcome.service[tenant].append((now, cost))
        watch(scheduler, now)
    outcome.seconds, outcome.preempted = now, scheduler.preempted
    return outcome


def _sequence(place: int, job: Job) -> RunningRequest:
    prompt = [1] * job.prefix + [2 + (7 * place + i) % 1000 for i in range(job.prompt - job.prefix)]
    request = Request(tuple(prompt), tenant=job.tenant, priority=job.priority, adapter=job.adapter)
    sequence = RunningRequest.start(place, request, prompt, job.prompt + job.new, seed=0)
    sequence.arrived = job.at
    return sequence
