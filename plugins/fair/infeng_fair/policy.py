"""The policy ``fair``: who has had least, by weight, is next; within that, the earliest deadline and what is cheap.

A tenant's counter says what it has had (accounts.py). Counters are compared in rounds of ``quantum``, as in deficit
round robin (Shreedhar & Varghese, 1995): of the tenants in the lowest round the one goes first whose next request is
due first. Which of its requests that is, locality.py says. Weights say how much a tenant gets, tiers how soon.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from infeng_core.api import Limits, Policy, RunningRequest, Served
from infeng_fair.accounts import NEW_COST, PROMPT_COST, Accounts, Tenant
from infeng_fair.counts import ByAdapters, Counts
from infeng_fair.locality import Locality
from infeng_fair.terms import Terms

ORDERED = 64
"""Requests, the first ones, that are put in order; hardly anybody looks further."""

PREEMPTED_ENOUGH = 3
"""Preemptions after which a request is among the last to be preempted again."""

MANY_PLACES = 16
"""Places of a batch from which on the last one is kept for tenants that have nothing to do at the moment ..."""

LATELY = 10.0
"""... and had in these seconds."""

_Turn = tuple[bool, float, float, int, int, float, Tenant, Iterator[RunningRequest] | None]
"""(whether it does not go first, round, deadline of the next request, number, requests named, counter after those,
tenant, its requests)."""


@dataclass(slots=True)
class _Known:
    """A request that has come and has not ended."""

    tenant: Tenant
    adapters: Counts
    runs: bool = False
    prepaid: int = 0
    """Tokens of its prompt that its tenant was charged for when it started, and that are not computed yet."""
    tag: float | None = None
    """The counter with which it started, until it has been served."""


class _Full(NamedTuple):
    """What tenants without a place of a full batch are owed."""

    level: float
    """The counter up to which a tenant is owed one place; less than any while places are free."""
    several: tuple[Tenant, ...]
    """Those that have more than one."""


class Fair(Policy):
    """Shares an engine between tenants."""

    shares = True

    def __init__(self, terms: Terms, limits: Limits) -> None:
        """Nobody waits yet."""
        self._terms = terms
        self._places = limits.max_segments
        self._accounts = Accounts(terms)
        self._by_adapters = ByAdapters(terms.max_tenants)
        self._locality = Locality(terms.group)
        self._known: dict[RunningRequest, _Known] = {}
        self._queued: dict[Tenant, None] = {}  # those with requests that wait
        self._busy: dict[Tenant, None] = {}  # those with requests that run
        self._ahead: Collection[Tenant] = ()  # those that start nothing in the step that is being made
        self._freed_for: Tenant | None = None  # whom a request has made room for in this step, until anything starts
        self._called = -1  # the id of the request for which others were paused though it had not started

    def attach(self, cached: Callable[[RunningRequest], int]) -> None:
        """Take what tells how many tokens of a request are in the cache."""
        self._locality.cached = cached

    def counts(self) -> dict[str, Mapping[str, Counts]]:
        """Return what was served: by ``tenants`` and by ``adapters``."""
        return {"tenants": self._accounts.values(), "adapters": self._by_adapters.values()}

    # ------------------------------------------------------------------------------------------ what it is told ---

    def add(self, request: RunningRequest, now: float) -> None:
        """Let a request wait, a new one or one that was preempted."""
        known = self._known.get(request)
        if known is None:
            known = _Known(self._accounts.of(request.request.tenant), self._by_adapters.of(request))
        place = known.tenant.deadline(request), request.id, request  # before anything is noted of one that has none
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
        insort(tenant.queue, place)
        self._locality.wait(request)
        _count(known, waiting=1)

    def remove(self, request: RunningRequest, now: float) -> None:
        """Let it wait no longer. Whatever leaves is taken as started; one that has ended is named by ``ended`` next."""
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
        """Charge tenants for what a step did."""
        accounts = self._accounts
        for request, rows, new in work:
            known = self._known[request]
            tenant = known.tenant
            if not (rows or new) and _rows(request) == 1:
                tenant.charge(NEW_COST)  # it held a place of the batch, and its logit processors were late
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
        """Give back what a request was charged for and did not get."""
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

    # ------------------------------------------------------------------------------------------- what it decides ---

    def order(self, now: float) -> Iterator[RunningRequest]:
        """Iterate over those that wait, but for tenants that are ahead; only the first few are put in order."""
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
            _, _, _, number, place, counter, tenant, requests = heap[0]
            requests = requests or locality.ordered(tenant.queue)
            request = next(requests)
            place += 1
            if place < len(tenant.queue):
                counter += PROMPT_COST * request.prompt_length / tenant.weight
                due = tenant.queue[place][0]
                heapreplace(heap, (True, counter // quantum, due, number, place, counter, tenant, requests))
            else:
                heappop(heap)
            named.add(request)
            yield request
        for tenant in tenants if heap else ():
            for _, _, request in tenant.queue:
                if request not in named:
                    yield request

    def active(self, running: Sequence[RunningRequest], now: float) -> Sequence[RunningRequest]:
        """Return those that have rows: all, but for tenants that are paused for the prompts of others.

        Those of them that decode pause for a bounded time, their prompts for as long as there are such others.
        """
        self._freed_for = None
        self._ahead = ahead = self._those_ahead(running, now) if self._terms.pause > 0 else ()
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
        return kept  # nobody, if whoever is next can start: else this is asked again, and nobody is ahead of him

    def prompts(self, running: Sequence[RunningRequest], now: float) -> Iterable[RunningRequest]:
        """Return them in the order in which they would start now."""
        return sorted(running, key=self._rank) if len(running) > 1 else running

    def victim(self, running: Sequence[RunningRequest], now: float) -> RunningRequest:
        """Return, of the tenant that has had most, the request that loses least."""
        return max(running, key=lambda request: (self._known[request].tenant.counter, *_cheapness(request)))

    def displaced(
        self, request: RunningRequest, running: Sequence[RunningRequest], now: float
    ) -> RunningRequest | None:
        """Return a request of a tenant that has more than its share while this one's has less, or of a lower tier.

        Whoever makes room may have had less, and would start again at once: the place is for this one's tenant.
        """
        tenant, full = self._known[request].tenant, self._full()
        ahead = {other for other in self._busy if self._gives_way(other, tenant, full, now)}
        candidates = [one for one in running if self._known[one].tenant in ahead]
        if not candidates:
            return None
        self._freed_for = tenant
        return self.victim(candidates, now)

    def seconds(self, decoding: Sequence[RunningRequest], now: float) -> float | None:
        """Return the shortest time to the next token that a tier of those that decode asks for.

        Where nobody decodes, whoever comes waits for no more than a pause until the step has run.
        """
        if not decoding:
            return self._terms.pause or None
        targets = [self._known[request].tenant.tier.token for request in decoding]
        return min((target for target in targets if target is not None), default=None)

    # ----------------------------------------------------------------------------------------------- how it does ---

    def _rank(self, request: RunningRequest) -> tuple[float, float, int]:
        tenant = self._known[request].tenant
        return tenant.counter // self._terms.quantum, tenant.deadline(request), request.id

    def _gives_way(self, other: Tenant, tenant: Tenant, full: _Full, now: float) -> bool:
        """Return whether a request of one tenant is to make room for one of another."""
        if other.tier.first > tenant.tier.first and other.counter >= tenant.counter:
            return True
        if tenant.running == 0 and tenant.counter <= full.level and _owes(other, tenant, now):
            return True
        has_more_places = other.running / other.weight > (tenant.running + 1) / tenant.weight
        return has_more_places and other.counter > tenant.counter + self._terms.quantum

    def _full(self) -> _Full:
        """Return what tenants without a place are owed.

        Long answers, and requests whose logit processors are late, keep all places while their tenant spends its burst.
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
        """Return the tenants that have their share of a batch, if one place is left and another tenant is soon back.

        A free place is one of many and costs little; without it, a request would be preempted for each that comes.
        """
        if self._places < MANY_PLACES or self._free_places != 1:
            return []
        lately = [one for one in self._accounts if one.queue or one.running or now - one.had_rows < LATELY]
        if all(one.running or one in self._ahead for one in lately):
            return []
        share = (self._places - 1) / sum(one.weight for one in lately)
        return [one for one in self._queued if one.running >= max(1.0, share * one.weight)]

    def _is_owed_a_place(self, tenant: Tenant, full: _Full, now: float) -> bool:
        """Return whether a tenant that waits has no place of a full batch while another has several."""
        if tenant.running or tenant.counter > full.level:
            return False
        return any(_owes(other, tenant, now) for other in full.several)

    def _those_ahead(self, running: Sequence[RunningRequest], now: float) -> Collection[Tenant]:
        """Return who has had more than one whose prompt is computed, or can be from this step on."""
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
            self._called = called.id  # it has the step; should it not start, then for other reasons
        return ahead

    def _wants_more(self, tenant: Tenant) -> bool:
        """Return whether a tenant has requests waiting, or more running, by weight, than others on average."""
        others = [one for one in self._busy if one is not tenant]
        if tenant.queue or not others:
            return True
        return tenant.running / tenant.weight > sum(one.running for one in others) / sum(one.weight for one in others)

    def _next_to_call(self, now: float) -> RunningRequest | None:
        """Return the request that starts next, if nobody has been held back for it in vain and it has its adapters."""
        first = next(self.order(now), None)
        if first is None or first.id == self._called or not (first.adapters is None or first.adapters.is_ready()):
            return None
        return first


def _owes(other: Tenant, tenant: Tenant, now: float) -> bool:
    """Return whether a tenant has a place for one that waits; one of an earlier tier has it once that is due."""
    return other.running > 1 and (other.tier.first >= tenant.tier.first or tenant.queue[0][0] <= now)


def _rows(request: RunningRequest) -> int:
    """Return how many rows it could have in a step: one, if it decodes."""
    return request.length - request.computed


def _cheapness(request: RunningRequest) -> tuple[bool, int, int]:
    return request.preemptions < PREEMPTED_ENOUGH, -request.computed, request.id


def _count(known: _Known, **changes: int) -> None:
    """Count for the tenant and for the adapters."""
    for counts in (known.tenant.counts, known.adapters):
        for name, change in changes.items():
            setattr(counts, name, getattr(counts, name) + change)
