"""What each tenant has had, by its weight: counters of service, which bring everybody to the same level.

The cost of service is that of the Virtual Token Counter (Sheng et al., "Fairness in Serving Large Language Models",
OSDI 2024): a token of a prompt that is computed costs 1, a new token 2, one that was found in the cache nothing. A
tenant's counter grows by cost / weight. Time, in this sense, is the largest counter with which a request was started
(start-time fair queueing, Goyal et al. 1996). A tenant that begins to wait again has its counter lifted to that time
less ``burst``: it is ahead of those that were there by no more than that, however long it was away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from infeng_core.api import RunningRequest
from infeng_fair.counts import OTHERS, Counts
from infeng_fair.terms import Share, Terms, Tier

PROMPT_COST = 1.0
NEW_COST = 2.0

Place = tuple[float, int, RunningRequest]
"""(deadline, id, request): how a tenant's requests are sorted."""


@dataclass(slots=True, eq=False)
class Tenant:
    """A tenant's account."""

    name: str
    number: int
    """In the order of their coming, to tell equals apart."""
    weight: float
    tier: Tier
    counter: float = 0.0
    """Cost of all that it was served, over its weight, and what it was lifted by."""
    queue: list[Place] = field(default_factory=list)
    """Its requests that wait, the earliest deadline first."""
    running: int = 0
    """Its requests that run."""
    had_rows: float = -math.inf
    """When a step with its requests began last."""
    counts: Counts = field(default_factory=Counts)

    def deadline(self, request: RunningRequest) -> float:
        """Return when a request's first token is due; a unit of priority is worth as much time as the tier gives."""
        return request.arrived + (1 - request.request.priority) * self.tier.first

    def charge(self, cost: float) -> None:
        """Count what it was served; less than nothing: what it was charged for and did not get."""
        self.counter += cost / self.weight


class Accounts:
    """The tenants, of whom a bounded number is told apart."""

    def __init__(self, terms: Terms) -> None:
        """Nobody is known yet."""
        self._terms = terms
        self._tenants: dict[str, Tenant] = {}
        self._made = 0
        self._rest = Counts()  # of those that were forgotten
        self.time = 0.0
        """The largest counter with which a request that was served had started."""

    def of(self, name: str) -> Tenant:
        """Return a tenant's account, of which there is one for all beyond ``max_tenants``."""
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= self._terms.max_tenants and not self._forget_one():
                name = OTHERS
            tenant = self._tenants.get(name) or self._open(name)
        return tenant

    def __iter__(self) -> Iterator[Tenant]:
        """Iterate over those that are told apart."""
        return iter(self._tenants.values())

    def lift(self, tenant: Tenant) -> None:
        """Let a tenant that begins to wait be ahead by no more than the burst."""
        tenant.counter = max(tenant.counter, self.time - self._terms.burst)

    def values(self) -> dict[str, Counts]:
        """Return what was served of each."""
        found = {name: tenant.counts for name, tenant in self._tenants.items()}
        if self._rest.requests:
            rest = Counts()
            rest.add(self._rest)
            rest.add(found.get(OTHERS, Counts()))
            found[OTHERS] = rest
        return found

    def _open(self, name: str) -> Tenant:
        share: Share = self._terms.tenants.get(name, self._terms.others)
        self._made += 1
        made = self._tenants[name] = Tenant(name, self._made, share.weight, share.tier)
        made.counter = self.time - self._terms.burst
        return made

    def _forget_one(self) -> bool:
        """Forget a tenant that has nothing here and would be lifted as a new one is; return whether there was any."""
        level = self.time - self._terms.burst
        for name, tenant in self._tenants.items():
            if not tenant.queue and not tenant.running and tenant.counter <= level and name != OTHERS:
                self._rest.add(tenant.counts)
                del self._tenants[name]
                return True
        return False
