"""A policy: many requests on a virtual clock, all of which end; and an engine's tokens, which it must not change."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from infeng_core.api import POLICIES, Engine, Request
from infeng_core.api.engines import BlockPool, CostModel, Limits, RunningRequest, Scheduler
from infeng_kit.checks.engine import tokens
from infeng_kit.report import failed, ok

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan

LIMITS = Limits(max_rows=64, max_samples=8, max_segments=8, context=1024, kv_blocks=256)
REQUESTS = 600
FIXED, ROW = 0.008, 0.001
"""Virtual seconds of a step, and of each of its rows."""
EVERY = 0.05
"""Virtual seconds between two requests: more work than the engine can do, so that requests wait."""


def check(plan: Plan, name: str, teller: Teller) -> None:
    """Report whether all requests are served, how long the last one waited, and whether tokens are unchanged."""
    part = f"policy {name}"
    teller.begin(f"{REQUESTS} requests on a virtual clock under policy {name}")
    policy = plan.plugins(scheduler__use=name).get(POLICIES, name)(LIMITS)
    run = _served(policy)
    overtaken, place = max((run.overtaken(place), place) for place in range(REQUESTS))
    if run.starved:
        why = f"{len(run.starved)} of {REQUESTS} requests never started, though all others had ended"
        teller.line(failed(part, why, "let order() return every waiting request at some time"))
    elif overtaken > REQUESTS / 2:
        why = f"request {place} of {REQUESTS} started after {overtaken} that had come later"
        teller.line(failed(part, why, "let a request that has waited for long go first"))
    else:
        waits = f"none waited longer than {run.longest:.1f} or for more than {overtaken} that had come later"
        teller.line(ok(part, f"{REQUESTS} requests ended within {run.seconds:.1f} virtual seconds; {waits}"))
    teller.begin(f"an engine under policy {name}")
    with Engine(plan.tiny(), overrides=plan.settings()) as engine:
        wanted = tokens(engine)
    settings = plan.settings(scheduler__use=name, scheduler__max_running=2)
    with Engine(plan.tiny(), overrides=settings) as engine:
        found = tokens(engine)
    if found == wanted:
        teller.line(ok(part, "an engine under it gives the same tokens"))
    else:
        teller.line(failed(part, "an engine under it gives other tokens", "a policy only orders requests"))


@dataclass
class _Run:
    """What became of the requests."""

    started: dict[int, float] = field(default_factory=dict)
    """When each started, by its number."""
    seconds: float = 0.0
    """The end of the last step."""

    @property
    def starved(self) -> list[int]:
        """The requests that never started."""
        return [place for place in range(REQUESTS) if place not in self.started]

    @property
    def longest(self) -> float:
        """The longest wait."""
        return max((when - place * EVERY for place, when in self.started.items()), default=0.0)

    def overtaken(self, place: int) -> int:
        """Return how many later requests started before one."""
        own = self.started.get(place, math.inf)
        return sum(when < own for later, when in self.started.items() if later > place)


def _served(policy: Any) -> _Run:
    """Serve requests of very different prompts until none is left, or until the policy lets none start."""
    names = {"fixed": FIXED, "sampled": 0.0, "attended": 0.0, "adapters": 0.0}
    costs = CostModel({**dict.fromkeys(CostModel().names, ROW), **names})
    scheduler = Scheduler(LIMITS, BlockPool(LIMITS.kv_blocks), policy, step_seconds=0.1, costs=costs, prefixes=None)
    coming, run = deque(request_of(place) for place in range(REQUESTS)), _Run()
    now, pauses = 0.0, 0
    while pauses < 2:
        while coming and coming[0].arrived <= now:
            scheduler.add(coming.popleft(), now)
        batch = scheduler.next_batch(now)
        if batch is None:  # a policy may wait for a time; twice an hour is enough
            pauses = pauses if coming else pauses + 1
            now = coming[0].arrived if coming else now + 3600.0
            continue
        now += FIXED + ROW * len(batch.tokens)
        run.seconds, pauses = now, 0
        for segment in batch.segments:
            run.started.setdefault(segment.sequence.id, now)
        drawn = [segment.sequence for segment in batch.segments if segment.sampled]
        ended = [one for one in drawn if one.length + 1 == len(one.tokens)]
        scheduler.commit(batch, [[1]] * len(drawn), ended, now)
    return run


def request_of(place: int) -> RunningRequest:
    """Return a request: two in three are short, every tenth is of a tenant with a long prompt."""
    length = 600 if place % 10 == 0 else 5 + 7 * place % 60
    prompt = [2 + (7 * place + i) % 1000 for i in range(length)]
    request = Request(tuple(prompt), tenant=f"tenant{place % 3}", priority=place % 2)
    made = RunningRequest.start(place, request, prompt, length + 3 + place % 17, seed=0)
    made.arrived = place * EVERY
    return made
