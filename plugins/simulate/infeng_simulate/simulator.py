"""The engine's scheduler on a virtual clock: a cost model gives the time of each step, and no model runs.

The loop makes few objects per step, so that a million requests take minutes. The scheduler gets the same inputs as in
an engine: sequences with tokens and adapters, KV blocks, time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from infeng_bench.costs.activity import Activity
from infeng_bench.costs.machine import Machine
from infeng_bench.costs.step_costs import Step
from infeng_bench.engine.place import reason
from infeng_bench.load.outcomes import Outcomes
from infeng_bench.load.traffic import ABSENT, Arrival, Traffic

from infeng_core.api import InfengError, PluginError, Request, SamplingParams
from infeng_core.api.engines import (
    Batch,
    Policy,
    RunningRequest,
    Scheduler,
    Schedulers,
    Segment,
    rows_of_prompt,
)
from infeng_simulate.gaps import HistogramGaps
from infeng_simulate.virtual_adapters import VirtualRegistry

ORIGIN = 1.0  # the scheduler's time at the beginning of the run: 0 means "never" to it
BLOCK = 16  # positions of a KV block
MOST_LIKE = 256  # most steps simulated at once
SHARED_ID = 1 << 30  # first token id of shared prefixes, above the indices of requests


@dataclass(slots=True, eq=False)
class Simulated(RunningRequest):
    """A sequence whose final length is known."""

    place: int = 0  # index of its request in the traffic
    end: int = 0  # final number of tokens
    at: float = -1.0  # time of its newest token; -1 before the first


@dataclass
class Simulation:
    """The result of a simulation."""

    outcomes: Outcomes
    activity: Activity
    loads: int = 0  # loads of adapters


class PreemptedError(Exception):
    """A request was preempted in a simulation with ``may_preempt=False``."""


@dataclass
class _Loop:
    """The state of one simulation."""

    traffic: Traffic
    machine: Machine
    scheduler: Scheduler
    backlog: Any
    clients: float
    registry: VirtualRegistry
    outcomes: Outcomes
    gaps: HistogramGaps  # of the outcomes
    activity: Activity
    only_orders: bool  # see ``_only_orders``
    may_preempt: bool
    arrivals: Iterator[tuple[int, Arrival]]
    coming: tuple[int, Arrival] | None  # the next arrival
    requests: dict[Any, Request] = field(default_factory=dict)
    in_flight: int = 0
    now: float = 0.0

    def next_arrival(self) -> float:
        """Return the time of the next arrival; in a closed loop, now if fewer than ``clients`` are in flight."""
        if self.coming is None:
            return math.inf
        if math.isinf(self.clients):
            return self.coming[1].at
        return self.now if self.in_flight < self.clients else math.inf

    def come_by(self, moment: float) -> int:
        """Return how many further requests arrive up to ``moment``."""
        if self.coming is None or self.next_arrival() > moment:
            return 0
        return int(np.searchsorted(self.traffic.at, moment, "right")) - self.coming[0]

    def take_arrivals(self) -> None:
        """Submit the requests that have arrived to the scheduler."""
        while self.coming is not None and self.next_arrival() <= self.now:
            place, arrival = self.coming
            self.coming = next(self.arrivals, None)
            moment = arrival.at if math.isinf(self.clients) else self.now
            self.outcomes.arrived[place] = moment
            try:
                self.backlog.check(arrival.prompt, tenant=arrival.tenant)
                self.scheduler.add(self.sequence(place, arrival, moment), moment + ORIGIN)
            except InfengError as error:
                self.outcomes.refuse(reason(error))
            else:
                self.backlog.enter(place, arrival.prompt, arrival.tenant)
                self.in_flight += 1

    def sequence(self, place: int, arrival: Arrival, moment: float) -> Simulated:
        """Return a request's sequence; its token ids are its index, or that of its shared prefix."""
        key = (arrival.tenant, arrival.priority, arrival.adapter)
        request = self.requests.get(key)
        if request is None:
            request = Request((), SamplingParams(), priority=key[1], tenant=key[0], adapter=key[2])
            self.requests[key] = request
        end = arrival.prompt + arrival.new
        tokens = np.full(end, int(self.traffic.index[place]), np.int32)
        if arrival.prefix != ABSENT:
            tokens[: arrival.prefix_length] = SHARED_ID + arrival.prefix
        invoked = max(0, arrival.prompt - self.machine.invocation) if self.machine.invocation else 0
        adapters = None if arrival.adapter is None else self.registry.reference(arrival.adapter, invoked)
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


def simulate(
    traffic: Traffic, schedulers: Schedulers, machine: Machine, *, clients: float = math.inf, may_preempt: bool = True
) -> Simulation:
    """Serve all requests of ``traffic`` with a scheduler that ``schedulers`` makes for the machine's limits.

    clients: most requests in flight of a closed loop; infinite: an open loop, requests come at their times. Raises
    PluginError if requests wait and the scheduler has no batch, PreemptedError if a request is preempted with
    ``may_preempt=False``.
    """
    limits = machine.limits
    registry = VirtualRegistry(machine.max_adapters, machine.costs.adapter_load)
    activity = Activity(min(limits.max_segments, limits.max_samples), limits.kv_blocks)
    scheduler, outcomes, gaps = schedulers.make(), Outcomes.empty(traffic), HistogramGaps()
    outcomes.gaps = gaps
    arrivals = enumerate(traffic)
    coming = next(arrivals, None)
    only_orders = _only_orders(scheduler.policy)
    loop = _Loop(
        traffic,
        machine,
        scheduler,
        schedulers.backlog,
        clients,
        registry,
        outcomes,
        gaps,
        activity,
        only_orders,
        may_preempt,
        arrivals,
        coming,
    )
    _run(loop)
    return Simulation(outcomes, activity, registry.loads)


def _only_orders(policy: Policy) -> bool:
    """Return whether a policy only orders waiting requests, without decisions about running ones in each step."""
    names = ("active", "prompts", "displaced", "seconds")
    return all(getattr(policy.__class__, name) is getattr(Policy, name) for name in names)


def _run(loop: _Loop) -> None:
    """Run the scheduler's steps until no request is left."""
    scheduler, registry = loop.scheduler, loop.registry
    base = loop.machine.costs.table(loop.machine.limits.max_rows)
    while True:
        loop.take_arrivals()
        registry.advance(loop.now)
        batch = scheduler.next_batch(loop.now + ORIGIN)
        if scheduler.preempted and not loop.may_preempt:
            raise PreemptedError
        if batch is not None:
            _step(loop, batch, base)
            continue
        moment = min(loop.next_arrival(), registry.next_change)
        if math.isinf(moment):
            break
        loop.now = max(loop.now, moment)
    loop.activity.preemptions = scheduler.preempted
    if scheduler.waiting or scheduler.running:
        raise PluginError("scheduler", "requests wait, and it has no batch", "report it to its author")


def _step(loop: _Loop, batch: Batch, base: list[float]) -> None:
    """Run a batch, together with equal batches that follow it."""
    scheduler, costs = loop.scheduler, loop.machine.costs
    single = attended = 0
    sampled: list[Simulated] = []
    prompts: list[Segment] = []  # unfinished after this step
    for segment in batch.segments:
        sequence, first, last, pos0, samples, _ = segment
        rows = last - first
        if rows == 1:
            single += pos0 + 1
        else:
            attended += rows * pos0 + rows * (rows + 1) // 2
        if samples:
            sampled.append(sequence)  # type: ignore[arg-type]
        else:
            prompts.append(segment)
    seconds = base[last] + costs.single * single + costs.attended * attended + costs.sampled * len(sampled)
    if batch.adapters:
        seconds += costs.adapter * Step.of(batch).adapters
    running, waiting, begin = scheduler.running, scheduler.waiting, loop.now
    times = [seconds]
    if prompts:
        is_decided = loop.only_orders and len(prompts) == 1
    else:
        is_decided = waiting == 0 or (loop.only_orders and running == loop.activity.places)
    if is_decided and running == len(batch.segments) and last == len(sampled) + (rows if prompts else 0):
        times += _more_steps(loop, sampled, prompts, seconds)
    count = len(times)
    spent = seconds if count == 1 else sum(times)
    if count > 1:
        waiting += loop.come_by(begin + spent - times[-1])
    used = loop.machine.limits.kv_blocks - scheduler.free_blocks + len(sampled) * (count - 1) / 32  # one for 16 steps
    loop.activity.step(begin, spent, last, running, waiting, used, count)
    finished = _record(loop, sampled, begin + seconds, begin + spent, times)
    if count > 1 and prompts:
        batch = batch._replace(segments=[_longer(segment, count) for segment in batch.segments])
    shape = scheduler.shape
    scheduler.commit(batch, [[0] * count] * len(sampled), finished, begin + seconds + ORIGIN)
    growth = len(sampled) + (rows * rows if prompts else 0)
    for later, took in enumerate(times[1:], 1):
        scheduler.costs.observe(shape._replace(attended=shape.attended + later * growth), took)


def _record(loop: _Loop, sampled: list[Simulated], now: float, end: float, times: list[float]) -> list[Simulated]:
    """Record the tokens of steps of ``times``, the first of which ends at ``now``, the last at ``end``.

    Returns the sequences that finished.
    """
    outcomes, gaps, before = loop.outcomes, loop.gaps, loop.now
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
    loop.now = end
    for sequence in finished:
        outcomes.begun[sequence.place] = sequence.started - ORIGIN
        outcomes.cached[sequence.place] = sequence.cached
        outcomes.last[sequence.place] = end
        outcomes.tokens[sequence.place] = sequence.end - sequence.prompt_length
        outcomes.is_done[sequence.place] = True
    loop.in_flight -= len(finished)
    return finished


def _more_steps(loop: _Loop, sampled: list[Simulated], prompts: list[Segment], seconds: float) -> list[float]:
    """Return the times of the steps after one of ``seconds`` for as long as the scheduler has nothing to decide.

    All sequences decode, except at most one, which is in prefill with the rest of the rows. Until a sequence ends, the
    prefill reaches its last chunk or a request arrives, each step equals the previous one, one position (or chunk)
    further. The scheduler therefore makes one batch and commits all steps at once: decoded tokens as accepted
    speculations, prefill rows as one chunk. Its cost model observes each step, up to its next fit.
    """
    if loop.scheduler.free_blocks < 2 * len(sampled) * len(loop.machine.limits.windows):
        return []  # a preemption may be near
    costs = loop.machine.costs
    is_full = loop.scheduler.running == loop.activity.places
    most, growth = min(MOST_LIKE, loop.scheduler.costs.until_fit), costs.single * len(sampled)
    for sequence in sampled:
        if sequence.at < 0:
            return []  # its first token
        beyond = BLOCK * len(sequence.blocks) + BLOCK - sequence.length  # a step allocates at most one block
        most = min(most, sequence.end - sequence.length, beyond)
    for segment in prompts:
        rows = segment.row_end - segment.row_begin
        most = min(most, (segment.sequence.length - segment.pos0 - 1) // rows)
        silent = max(_begins(segment.sequence), default=0) - segment.pos0  # rows on which its adapter does not act
        most = min(most, max(1, silent // rows)) if silent > 0 else most
        most, has_no_row = _as_many_rows(loop, len(sampled), segment, most)
        is_full = is_full or has_no_row
        growth += costs.attended * rows * rows
    times: list[float] = []
    # A request that arrives meanwhile cannot start, but its adapters could be loaded.
    is_full = loop.only_orders and (is_full or loop.scheduler.waiting > 0) and not loop.traffic.adapters
    left = min(math.inf if is_full else loop.next_arrival(), loop.registry.next_change) - loop.now - seconds
    while len(times) < most - 1 and left > 0:
        seconds += growth
        left -= seconds
        times.append(seconds)
    return times


def _as_many_rows(loop: _Loop, decoding: int, prompt: Segment, most: int) -> tuple[int, bool]:
    """Return how many steps in a row, at most ``most``, prefill as many rows of a prompt as the present step.

    The bound on a step's time allows fewer rows as contexts grow. Also returns whether there is no row for one more
    prompt, which then holds for all these steps.
    """
    scheduler, rows, pos0 = loop.scheduler, prompt.row_end - prompt.row_begin, prompt.pos0
    own = rows * pos0 + rows * (rows + 1) // 2
    shape = scheduler.shape._replace(rows=decoding, sampled=decoding + 1, attended=scheduler.shape.attended - own)
    seconds = scheduler.step_seconds if decoding else None
    left = loop.machine.limits.max_rows - decoding

    def is_like(steps: int) -> bool:
        after = shape._replace(attended=shape.attended + decoding * (steps - 1))
        return rows_of_prompt(scheduler.costs, seconds, after, pos0 + rows * (steps - 1), left) == rows

    full = scheduler.shape._replace(sampled=decoding + 1)
    is_full = rows_of_prompt(scheduler.costs, seconds, full, 0, left - rows, rows) <= 0
    low, high = 1, most + 1
    steps = most
    while high - low > 1:
        low, high = (steps, high) if is_like(steps) else (low, steps)
        steps = (low + high) // 2
    return low, is_full


def _begins(sequence: RunningRequest) -> tuple[int, ...]:
    return () if sequence.adapters is None else sequence.adapters.begins


def _longer(segment: Segment, count: int) -> Segment:
    """Return a prompt's segment with the rows of ``count`` steps."""
    if segment.sampled:
        return segment
    return segment._replace(row_end=segment.row_begin + count * (segment.row_end - segment.row_begin))
