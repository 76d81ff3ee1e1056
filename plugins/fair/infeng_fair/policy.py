"""The policy ``fair``: the tenant with the least service by weight is next, with its most urgent request.

A tenant's counter measures its service (accounts.py). Counters are compared in rounds of ``quantum``, as in deficit
round robin (Shreedhar & Varghese, 1995): among the tenants in the lowest round, the one whose next request is due first
goes first. locality.py orders the requests of one tenant. Weights set how much a tenant gets, tiers how soon.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from infeng_core.api.engines import Limits, Policy, RunningRequest, Served
from infeng_fair.accounts import NEW_COST, PROMPT_COST, Accounts, Tenant
from infeng_fair.counts import ByAdapters, Counts
from infeng_fair.locality import Locality
from infeng_fair.shares import Terms

ORDERED = 64
"""Number of requests at the head of the queue that are put in order; the engine rarely reads further."""

PREEMPTED_ENOUGH = 3
"""Preemptions after which a request is preempted again only after the other requests of its tenant."""

MANY_PLACES = 16
"""Batch size from which on the last place is kept free for recently active tenants that are idle now."""

LATELY = 10.0
"""Seconds since its last step within which an idle tenant counts as recently active."""

_Turn = tuple[bool, float, float, int, int, float, Tenant, Iterator[RunningRequest] | None]
"""(whether the tenant does not go first, round, deadline of its next request, its number, count of its requests already
listed, its counter after these, tenant, iterator over its requests)."""


@dataclass(slots=True)
class _Known:
    """State of a request from its arrival to its end."""

    tenant: Tenant
    adapters: Counts
    runs: bool = False
    prepaid: int = 0
    """Prompt tokens that its tenant was charged for at the start and that are not computed yet."""
    tag: float | None = None
    """The tenant's counter at the start; None once the request has been served."""


class _Full(NamedTuple):
    """The rule by which tenants without a place in a full batch are owed one."""

    level: float
    """Largest counter with which a tenant is owed one place; -inf while places are free."""
    several: tuple[Tenant, ...]
    """Tenants with more than one place."""


class Fair(Policy):
    """Shares an engine between tenants."""

    shares = True

    def __init__(self, terms: Terms, limits: Limits) -> None:
        """Start without requests."""
        self._terms = terms
        self._places = limits.max_segments
        self._accounts = Accounts(terms)
        self._by_adapters = ByAdapters(terms.max_tenants)
        self._locality = Locality(terms.group)
        self._known: dict[RunningRequest, _Known] = {}
        self._queued: dict[Tenant, None] = {}  # tenants with waiting requests
        self._busy: dict[Tenant, None] = {}  # tenants with running requests
        self._ahead: Collection[Tenant] = ()  # tenants that start nothing in the current step
        self._freed_for: Tenant | None = None  # the tenant that a preemption in this step made room for
        self._called = -1  # id of the waiting request that tenants were last paused for

    def attach(self, cached: Callable[[RunningRequest], int]) -> None:
        """Use ``cached``, which returns how many tokens of a request are in the cache."""
        self._locality.cached = cached

    def counts(self) -> dict[str, Mapping[str, Counts]]:
        """Return the counts by ``tenants`` and by ``adapters``."""
        return {"tenants": self._accounts.values(), "adapters": self._by_adapters.values()}

    # --------------------------------------------------------------------------------------------------- events ---

    def add(self, request: RunningRequest, now: float) -> None:
        """Queue a new or a preempted request."""
        known = self._known.get(request)
        if known is None:
            known = _Known(self._accounts.of(request.request.tenant), self._by_adapters.of(request))
        entry = known.tenant.deadline(request), request.id, request  # may raise: before any state changes
        if request not in self._known:
            self._known[request] = known
            _count(known, requests=1)
        if known.runs:
            self._stopped(request, known)
            _count(known, preemptions=1)
        tenant = known.tenant
        if not tenant.queue:
            self._accounts.lift(tenant)
            self._queued[tenant] = None
        insort(tenant.queue, entry)
        self._locality.wait(request)
        _count(known, waiting=1)

    def remove(self, request: RunningRequest, now: float) -> None:
        """Take a request off the queue. It counts as started, until ``ended`` is called for it."""
        known = self._known[request]
        tenant = known.tenant
        del tenant.queue[bisect_left(tenant.queue, (tenant.deadline(request), request.id))]
        if not tenant.queue:
            del self._queued[tenant]
        self._locality.go(request)
        _count(known, waiting=-1, running=1)
        known.runs = True
        self._freed_for = None
        tenant.running += 1
        self._busy[tenant] = None
        self._locality.start(request)
        known.tag = tenant.counter
        if request.preemptions == 0:
            known.prepaid = request.prompt_length - request.cached
            tenant.charge(PROMPT_COST * known.prepaid)

    def served(self, work: Sequence[Served], now: float) -> None:
        """Charge the tenants for a step's rows and new tokens."""
        accounts = self._accounts
        for request, rows, new in work:
            known = self._known[request]
            tenant = known.tenant
            if not (rows or new) and _rows(request) == 1:
                tenant.charge(NEW_COST)  # it held a place of the batch while its logit processors were late
            if known.tag is not None:
                accounts.time = max(accounts.time, known.tag)
                known.tag = None
                if request.preemptions == 0:
                    _count(known, cached_tokens=request.cached)
            if rows:
                paid = min(rows, known.prepaid)
                known.prepaid -= paid
                tenant.charge(PROMPT_COST * (rows - paid))
                _count(known, prompt_tokens=rows)
            if new:
                tenant.charge(NEW_COST * new)
                tenant.counts.new_tokens += new
                known.adapters.new_tokens += new
        self._locality.step()

    def ended(self, request: RunningRequest, now: float) -> None:
        """Forget a request and refund the prompt tokens that were charged and not computed."""
        known = self._known.pop(request)
        if known.runs:
            self._stopped(request, known)
        known.tenant.charge(-PROMPT_COST * known.prepaid)

    def _stopped(self, request: RunningRequest, known: _Known) -> None:
        known.runs = False
        known.tenant.running -= 1
        if not known.tenant.running:
            del self._busy[known.tenant]
        self._locality.stop(request)
        _count(known, running=-1)

    # ------------------------------------------------------------------------------------------------- decisions ---

    def order(self, now: float) -> Iterator[RunningRequest]:
        """Iterate over the waiting requests of tenants not held back; only the first ``ORDERED`` are sorted."""
        quantum, locality = self._terms.quantum, self._locality
        held_back = {*self._ahead, *self._without_the_last_place(now)}
        tenants = [tenant for tenant in self._queued if tenant not in held_back]
        full = self._full()
        heap: list[_Turn] = []
        for tenant in tenants:
            due, _, first = tenant.queue[0]
            goes_first = tenant is self._freed_for or self._is_owed_a_place(tenant, full, now)
            round_, due = tenant.counter // quantum, due - locality.gain_of_adapters(first)
            heap.append((not goes_first, round_, due, tenant.number, 0, tenant.counter, tenant, None))
        heapify(heap)
        named: set[RunningRequest] = set()
        while heap and len(named) < ORDERED:
            _, _, _, number, listed, counter, tenant, requests = heap[0]
            requests = requests or locality.ordered(tenant.queue)
            request = next(requests)
            listed += 1
            if listed < len(tenant.queue):
                counter += PROMPT_COST * request.prompt_length / tenant.weight
                due = tenant.queue[listed][0]
                heapreplace(heap, (True, counter // quantum, due, number, listed, counter, tenant, requests))
            else:
                heappop(heap)
            named.add(request)
            yield request
        for tenant in tenants if heap else ():
            for _, _, request in tenant.queue:
                if request not in named:
                    yield request

    def active(self, running: Sequence[RunningRequest], now: float) -> Sequence[RunningRequest]:
        """Return the running requests that have rows in the next step.

        Tenants with more service pause while a prompt of a tenant with less is computed or can start. Their prompts
        pause for as long as that lasts, their decoding requests for ``pause`` seconds at most.
        """
        self._freed_for = None
        self._ahead = ahead = self._tenants_ahead(running, now) if self._terms.pause > 0 else ()
        paused = {one for one in ahead if now - one.had_rows < self._terms.pause and self._wants_more(one)}
        for tenant in self._busy:
            if tenant not in paused:
                tenant.had_rows = now
        if not ahead:
            return running
        kept = []
        for request in running:
            tenant = self._known[request].tenant
            if tenant not in ahead or (tenant not in paused and _rows(request) == 1):
                kept.append(request)
        return kept  # empty only if the next request should start; if it cannot, the next call pauses nothing for it

    def prompts(self, running: Sequence[RunningRequest], now: float) -> Iterable[RunningRequest]:
        """Return the running requests in the order in which their prompts are computed."""
        return sorted(running, key=self._rank) if len(running) > 1 else running

    def victim(self, running: Sequence[RunningRequest], now: float) -> RunningRequest:
        """Return the request to preempt: of the tenant with the most service, the one with the least to recompute."""
        return max(running, key=lambda request: (self._known[request].tenant.counter, *_cheapness(request)))

    def displaced(
        self, request: RunningRequest, running: Sequence[RunningRequest], now: float
    ) -> RunningRequest | None:
        """Return a running request that ``request`` displaces: one of a lower tier or of a tenant above its share.

        The freed place is reserved for the tenant of ``request``, since the displaced request may have had less service
        and would otherwise start again at once.
        """
        tenant, full = self._known[request].tenant, self._full()
        ahead = {other for other in self._busy if self._gives_way(other, tenant, full, now)}
        candidates = [one for one in running if self._known[one].tenant in ahead]
        if not candidates:
            return None
        self._freed_for = tenant
        return self.victim(candidates, now)

    def seconds(self, decoding: Sequence[RunningRequest], now: float) -> float | None:
        """Return the bound of a step in seconds: the shortest time per token among the tiers of decoding requests.

        Without decoding requests the bound is ``pause``, so that a new request waits no longer to be considered.
        """
        if not decoding:
            return self._terms.pause or None
        targets = [self._known[request].tenant.tier.token for request in decoding]
        return min((target for target in targets if target is not None), default=None)

    # --------------------------------------------------------------------------------------------------- helpers ---

    def _rank(self, request: RunningRequest) -> tuple[float, float, int]:
        tenant = self._known[request].tenant
        return tenant.counter // self._terms.quantum, tenant.deadline(request), request.id

    def _gives_way(self, other: Tenant, tenant: Tenant, full: _Full, now: float) -> bool:
        """Return whether a request of ``other`` makes room for one of ``tenant``."""
        if other.tier.first > tenant.tier.first and other.counter >= tenant.counter:
            return True
        if tenant.running == 0 and tenant.counter <= full.level and _owes(other, tenant, now):
            return True
        has_more_places = other.running / other.weight > (tenant.running + 1) / tenant.weight
        return has_more_places and other.counter > tenant.counter + self._terms.quantum

    def _full(self) -> _Full:
        """Return the rule for tenants without a place.

        Without it, a tenant could keep all places with long answers, or with requests whose logit processors are late,
        while it spends its burst.
        """
        if self._free_places:
            return _Full(-math.inf, ())
        least = min(tenant.counter for tenant in self._queued.keys() | self._busy.keys())
        several = tuple(tenant for tenant in self._busy if tenant.running > 1)
        return _Full(least + self._terms.burst + self._terms.quantum, several)

    @property
    def _free_places(self) -> int:
        return self._places - sum(tenant.running for tenant in self._busy)

    def _without_the_last_place(self, now: float) -> list[Tenant]:
        """Return the tenants that may not take the last place: they have their share, and another was active lately.

        A free place among many costs little; without it, each request of the other tenant would preempt one.
        """
        if self._places < MANY_PLACES or self._free_places != 1:
            return []
        lately = [one for one in self._accounts if one.queue or one.running or now - one.had_rows < LATELY]
        if all(one.running or one in self._ahead for one in lately):
            return []
        share = (self._places - 1) / sum(one.weight for one in lately)
        return [one for one in self._queued if one.running >= max(1.0, share * one.weight)]

    def _is_owed_a_place(self, tenant: Tenant, full: _Full, now: float) -> bool:
        """Return whether a waiting tenant without a place in a full batch is owed one by a tenant with several."""
        if tenant.running or tenant.counter > full.level:
            return False
        return any(_owes(other, tenant, now) for other in full.several)

    def _tenants_ahead(self, running: Sequence[RunningRequest], now: float) -> Collection[Tenant]:
        """Return the tenants with over a quantum more service than one whose prompt is computed or can start now."""
        there = self._queued.keys() | self._busy.keys()
        if len(there) < 2:
            return ()
        self._ahead = ()
        called = self._next_to_call(now) if self._queued else None
        prompts = {self._known[request].tenant for request in running if _rows(request) > 1}
        least = min((tenant.counter for tenant in prompts), default=math.inf)
        if called is not None:
            tenant = self._known[called].tenant
            least = min(least, tenant.counter + PROMPT_COST * called.prompt_length / tenant.weight)
        level = least + self._terms.quantum
        places = self._full().level
        ahead = {one for one in there if one.counter > level and (one.running > 1 or one.counter > places)}
        if called is not None and prompts <= ahead:
            self._called = called.id  # pauses for one step only: a request that does not start has another obstacle
        return ahead

    def _wants_more(self, tenant: Tenant) -> bool:
        """Return whether a tenant has waiting requests, or more running ones by weight than the others on average."""
        others = [one for one in self._busy if one is not tenant]
        if tenant.queue or not others:
            return True
        return tenant.running / tenant.weight > sum(one.running for one in others) / sum(one.weight for one in others)

    def _next_to_call(self, now: float) -> RunningRequest | None:
        """Return the next request to start, unless its adapters are not loaded or a pause for it was in vain."""
        first = next(self.order(now), None)
        if first is None or first.id == self._called or not (first.adapters is None or first.adapters.is_ready()):
            return None
        return first


def _owes(other: Tenant, tenant: Tenant, now: float) -> bool:
    """Return whether ``other`` gives up a place for ``tenant``; with an earlier tier, only once the request is due."""
    return other.running > 1 and (other.tier.first >= tenant.tier.first or tenant.queue[0][0] <= now)


def _rows(request: RunningRequest) -> int:
    """Return how many rows a request could have in a step; a decoding request has one."""
    return request.length - request.computed


def _cheapness(request: RunningRequest) -> tuple[bool, int, int]:
    return request.preemptions < PREEMPTED_ENOUGH, -request.computed, request.id


def _count(known: _Known, **changes: int) -> None:
    """Add ``changes`` to the counts of the request's tenant and of its adapters."""
    for counts in (known.tenant.counts, known.adapters):
        for name, change in changes.items():
            setattr(counts, name, getattr(counts, name) + change)
