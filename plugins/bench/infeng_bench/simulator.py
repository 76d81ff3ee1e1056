"""The scheduler's own objects on a virtual clock: what a step takes is foretold, and no model runs.

A million requests go through in minutes, so the loop below makes few objects for each step. The scheduler sees what it
sees in an engine: sequences with tokens and adapters, blocks of a cache, time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from infeng_bench.activity import Activity
from infeng_bench.outcomes import Outcomes
from infeng_bench.simadapters import VirtualRegistry
from infeng_bench.stepcosts import Step, StepCosts
from infeng_bench.traffic import NOBODY, Arrival, Traffic
from infeng_core.api import InfengError, Limits, PluginError, Request, SamplingParams, Scheduler, Schedulers, Sequence

ORIGIN = 1.0
"""What the scheduler is told of the beginning: 0 stands for what never was."""
SHARED_ID = 1 << 30  # stands for the tokens of shared beginnings, above the numbers of requests


@dataclass(slots=True, eq=False)
class Simulated(Sequence):
    """A sequence whose end is known."""

    place: int = 0
    """Of its request in the traffic."""
    end: int = 0
    """Tokens that it has when it is finished."""
    at: float = -1.0
    """When it had its newest token; -1 before the first."""


@dataclass(frozen=True)
class Machine:
    """What runs the scheduler's batches: bounds, what steps take, and places for adapters."""

    limits: Limits
    costs: StepCosts
    max_adapters: int = 16

    def capacity(self, prompt: float, new: float) -> float:
        """Return the requests a second that it can serve, of so many tokens on average."""
        limits = self.limits
        room = limits.kv_blocks * 16 / max(1.0, prompt + new)
        running = max(1, min(limits.max_segments, limits.max_samples, int(room)))
        return self.costs.capacity(prompt, new, running, limits.max_rows)


@dataclass
class Simulation:
    """What became of the requests, and of the machine's time."""

    outcomes: Outcomes
    activity: Activity
    loads: int = 0
    """Adapters that were read."""


@dataclass
class _Loop:
    """One run."""

    traffic: Traffic
    machine: Machine
    scheduler: Scheduler
    backlog: Any
    clients: float
    registry: VirtualRegistry
    outcomes: Outcomes
    activity: Activity
    arrivals: deque[tuple[int, Arrival]] = field(default_factory=deque)
    requests: dict[Any, Request] = field(default_factory=dict)
    in_flight: int = 0
    now: float = 0.0

    def next_arrival(self) -> float:
        """Return when the next request comes; in a closed loop, now if there is a place for it."""
        if not self.arrivals:
            return math.inf
        if math.isinf(self.clients):
            return self.arrivals[0][1].at
        return self.now if self.in_flight < self.clients else math.inf

    def take_arrivals(self) -> None:
        """Hand over the requests that have come."""
        while self.arrivals and self.next_arrival() <= self.now:
            place, arrival = self.arrivals.popleft()
            moment = arrival.at if math.isinf(self.clients) else self.now
            self.outcomes.arrived[place] = moment
            try:
                self.backlog.check(arrival.prompt)
                self.scheduler.add(self.sequence(place, arrival, moment), moment + ORIGIN)
            except InfengError as error:
                self.outcomes.refuse(reason(error))
            else:
                self.backlog.enter(place, arrival.prompt)
                self.in_flight += 1

    def sequence(self, place: int, arrival: Arrival, moment: float) -> Simulated:
        """Return a request's sequence: its tokens are its number, but for what it shares with others."""
        key = (arrival.tenant, arrival.priority, arrival.adapter)
        request = self.requests.get(key)
        if request is None:
            request = Request((), SamplingParams(), priority=key[1], tenant=key[0], adapter=key[2])
            self.requests[key] = request
        end = arrival.prompt + arrival.new
        tokens = np.full(end, int(self.traffic.index[place]), np.int32)
        if arrival.prefix != NOBODY:
            tokens[: arrival.prefix_length] = SHARED_ID + arrival.prefix
        adapters = None if arrival.adapter is None else self.registry.reference(arrival.adapter)
        return Simulated(
            place,
            request,
            tokens,
            arrival.prompt,
            arrival.prompt,
            arrived=moment + ORIGIN,
            adapters=adapters,
            place=place,
            end=end,
        )


def simulate(traffic: Traffic, schedulers: Schedulers, machine: Machine, *, clients: float = math.inf) -> Simulation:
    """Serve all requests of ``traffic`` with a scheduler that ``schedulers`` makes for the machine's limits.

    clients: requests in flight at most, the next one comes when one has gone; infinite: they come at their times.
    Raises PluginError where requests wait and the scheduler has no batch.
    """
    limits = machine.limits
    registry = VirtualRegistry(machine.max_adapters, machine.costs.adapter_load)
    activity = Activity(min(limits.max_segments, limits.max_samples), limits.kv_blocks)
    scheduler, outcomes = schedulers.make(), Outcomes.of(traffic)
    loop = _Loop(traffic, machine, scheduler, schedulers.backlog, clients, registry, outcomes, activity)
    loop.arrivals.extend(enumerate(traffic))
    _run(loop)
    return Simulation(outcomes, activity, registry.loads)


def reason(error: InfengError) -> str:
    """Return what results call an error that a request ended with."""
    return str(getattr(error, "reason", "") or type(error).__name__)


def _run(loop: _Loop) -> None:
    scheduler, outcomes, activity, registry = loop.scheduler, loop.outcomes, loop.activity, loop.registry
    costs, blocks = loop.machine.costs, loop.machine.limits.kv_blocks
    base = costs.table(loop.machine.limits.max_rows)
    gaps = outcomes.gaps
    before = -2.0  # when the step before this one ended
    while True:
        loop.take_arrivals()
        registry.advance(loop.now)
        batch = scheduler.next_batch(loop.now + ORIGIN)
        if batch is None:
            moment = min(loop.next_arrival(), registry.next_change)
            if math.isinf(moment):
                break
            loop.now = max(loop.now, moment)
            continue
        begin = loop.now
        single = attended = 0
        sampled: list[Simulated] = []
        for sequence, first, last, pos0, samples, _ in batch.segments:
            rows = last - first
            if rows == 1:
                single += pos0 + 1
            else:
                attended += rows * pos0 + rows * (rows + 1) // 2
            if samples:
                sampled.append(sequence)  # type: ignore[arg-type]
        seconds = base[last] + costs.single * single + costs.attended * attended + costs.sampled * len(sampled)
        if batch.adapters:
            seconds += costs.adapter * Step.of(batch).adapters
        times = [seconds]
        running, waiting = scheduler.running, scheduler.waiting
        if waiting == 0 and last == running == len(sampled):
            times += _more_steps(loop, sampled, begin, seconds, costs.single * running)
        spent = seconds if len(times) == 1 else sum(times)
        used = blocks - scheduler.free_blocks + running * (len(times) - 1) / 32  # a block for 16 steps, on average
        activity.step(begin, spent, last, running, waiting, used, len(times))
        now, end = begin + seconds, begin + spent
        even = 0
        finished: list[Simulated] = []
        for sequence in sampled:
            if sequence.at == before:
                even += 1
            elif sequence.at >= 0:
                gaps.add(now - sequence.at)
            else:
                outcomes.first[sequence.place] = now
            sequence.at = end
            if sequence.length + len(times) >= sequence.end:
                finished.append(sequence)
        if even:
            gaps.add(now - before, even)
        gaps.add_all(times[1:], len(sampled))
        before = loop.now = end
        for sequence in finished:
            outcomes.begun[sequence.place] = sequence.started - ORIGIN
            outcomes.cached[sequence.place] = sequence.cached
            outcomes.last[sequence.place] = end
            outcomes.tokens[sequence.place] = sequence.end - sequence.prompt_length
            outcomes.is_done[sequence.place] = True
        loop.in_flight -= len(finished)
        scheduler.commit(batch, [[0] * len(times)] * len(sampled), finished, now + ORIGIN)
    activity.preemptions = scheduler.preempted
    if scheduler.waiting or scheduler.running:
        raise PluginError("scheduler", "requests wait, and it has no batch", "report it to whoever wrote it")


def _more_steps(
    loop: _Loop, sampled: Collection[Simulated], begin: float, seconds: float, growth: float
) -> list[float]:
    """Return the times of the steps that follow one in which all decode and nobody waits, until something happens.

    A scheduler has nothing to decide in them: until a sequence ends or another one comes, each step has the same
    sequences, with one more position each. So it is asked once and told the tokens of all of them, as of guesses that
    were right, but the time of the first, from which it learns what steps cost.
    """
    if any(sequence.at < 0 for sequence in sampled) or loop.scheduler.free_blocks < 2 * len(sampled):
        return []  # a prompt of one token, or soon there is something to decide
    steps = min([sequence.end - sequence.length for sequence in sampled])
    steps = min([steps, *(16 * len(sequence.blocks) + 16 - sequence.length for sequence in sampled)])  # one more block
    times: list[float] = []
    left = loop.next_arrival() - begin - seconds
    while len(times) < steps - 1 and left > 0:
        seconds += growth
        left -= seconds
        times.append(seconds)
    return times
