"""Service counters: the weighted cost of the work done for each tenant.

The cost of service is that of the Virtual Token Counter (Sheng et al., "Fairness in Serving Large Language Models",
OSDI 2024): a computed prompt token costs 1, a new token 2, a cached token nothing. A tenant's counter grows by
cost / weight. Virtual time is the largest counter with which a request was started (start-time fair queueing, Goyal et
al. 1996). When an idle tenant queues a request again, its counter is lifted to virtual time less ``burst``: a tenant
gains at most ``burst`` over the others by being idle, however long it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from infeng_core.api.engines import RunningRequest
from infeng_fair.counts import OTHERS, Counts
from infeng_fair.shares import Share, Terms, Tier

PROMPT_COST = 1.0
NEW_COST = 2.0

Queued = tuple[float, int, RunningRequest]
"""(deadline, id, request): an entry of a tenant's queue, in sort order."""


@dataclass(slots=True, eq=False)
class Tenant:
    """A tenant's account."""

    name: str
    number: int
    """Tenants are numbered in order of arrival; the number breaks ties."""
    weight: float
    tier: Tier
    counter: float = 0.0
    """Cost of all service over the weight, plus all lifts."""
    queue: list[Queued] = field(default_factory=list)
    """Its waiting requests, earliest deadline first."""
    running: int = 0
    """Number of its running requests."""
    had_rows: float = -math.inf
    """Start of the last step with rows of its requests, in seconds of the scheduler's clock."""
    counts: Counts = field(default_factory=Counts)

    def deadline(self, request: RunningRequest) -> float:
        """Return when a request's first token is due; a unit of priority moves it earlier by the tier's ``first``."""
        return request.arrived + (1 - request.request.priority) * self.tier.first

    def charge(self, cost: float) -> None:
        """Add the cost of service to the counter; a negative cost refunds service that was not delivered."""
        self.counter += cost / self.weight


class Accounts:
    """The tenants' accounts; a bounded number of tenants is told apart."""

    def __init__(self, terms: Terms) -> None:
        """Start without tenants."""
        self._terms = terms
        self._tenants: dict[str, Tenant] = {}
        self._made = 0
        self._rest = Counts()  # of forgotten tenants
        self.time = 0.0
        """Virtual time: the largest counter with which a served request had started."""

    def of(self, name: str) -> Tenant:
        """Return a tenant's account; all tenants beyond ``max_tenants`` share one."""
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= self._terms.max_tenants and not self._forget_one():
                name = OTHERS
            tenant = self._tenants.get(name) or self._open(name)
        return tenant

    def __iter__(self) -> Iterator[Tenant]:
        """Iterate over all accounts."""
        return iter(self._tenants.values())

    def lift(self, tenant: Tenant) -> None:
        """Raise the counter of a tenant that queues again to virtual time less ``burst``, if it is lower."""
        tenant.counter = max(tenant.counter, self.time - self._terms.burst)

    def values(self) -> dict[str, Counts]:
        """Return the counts of each tenant by name."""
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
        """Forget an idle tenant whose counter is no higher than a new tenant's; return whether there was one."""
        level = self.time - self._terms.burst
        for name, tenant in self._tenants.items():
            if not tenant.queue and not tenant.running and tenant.counter <= level and name != OTHERS:
                self._rest.add(tenant.counts)
                del self._tenants[name]
                return True
        return False
