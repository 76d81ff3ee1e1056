"""A fleet of replicas on a virtual clock: which of them holds which adapter, and how long requests wait.

A replica answers ``slots`` requests at a time, the others wait in their order of arrival. It keeps the adapters that it
used last, and a request whose adapter it has not waits for its load while it holds a slot. Times are in seconds.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from infeng_ray.router import Router

WARM_UP = 0.25
"""Share of the requests, the first ones, that fill the replicas and are not counted."""

SPREAD = 0.6
"""Sigma of the lognormal durations of requests."""


KEYS = 100
"""Most keys that are followed when a replica is lost."""


@dataclass(frozen=True)
class Fleet:
    """What is simulated."""

    replicas: int
    slots: int
    resident: int
    """Adapters that a replica keeps in memory, and beginnings of prompts that it keeps in its cache."""
    adapters: int
    zipf: float
    """Adapter k, and beginning k of the base's prompts, have weight 1/(k+1)^zipf."""
    load: float
    """Offered requests over those that all slots can answer."""
    duration: float
    """Mean seconds of a request."""
    load_seconds: float
    """Seconds to bring an adapter into memory."""
    base: float = 0.0
    """Share of the requests to the base model."""
    prefixes: int = 1000
    """Beginnings of the base's prompts."""


@dataclass(frozen=True, eq=False)
class Requests:
    """Arrays of shape (requests,)."""

    at: NDArray[np.float64]
    seconds: NDArray[np.float64]
    adapter: NDArray[np.int64]
    """Below ``Fleet.adapters`` an adapter, else a beginning of the base's prompts."""


def draw(fleet: Fleet, count: int, seed: int) -> Requests:
    """Draw Poisson arrivals with lognormal durations and Zipf adapters."""
    rng = np.random.default_rng(seed)
    adapter = rng.choice(fleet.adapters, count, p=_zipf(fleet.adapters, fleet.zipf))
    seconds = rng.lognormal(0, SPREAD, count)
    seconds *= fleet.duration / seconds.mean()
    rate = fleet.replicas * fleet.slots * fleet.load / fleet.duration
    at = np.cumsum(rng.exponential(1 / rate, count))
    is_base = rng.random(count) < fleet.base
    prefix = fleet.adapters + rng.choice(fleet.prefixes, count, p=_zipf(fleet.prefixes, fleet.zipf))
    return Requests(at, seconds, np.where(is_base, prefix, adapter))


def _zipf(count: int, alpha: float) -> NDArray[np.float64]:
    weights = 1 / np.arange(1, count + 1) ** alpha
    return np.asarray(weights / weights.sum())


class _Replica:
    """Slots, a queue and what is in memory, least recently used first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy = 0
        self.queue: deque[int] = deque()
        self.held: OrderedDict[int, None] = OrderedDict()
        self.cached: OrderedDict[int, None] = OrderedDict()


class Run:
    """One run of a fleet behind one router."""

    def __init__(self, fleet: Fleet, requests: Requests, router: Router) -> None:
        """Start with empty replicas; the router gets them here."""
        from infeng_ray.router import key_of

        self._fleet, self._requests, self._router = fleet, requests, router
        self._replicas = {name: _Replica(name) for name in (f"replica-{k}" for k in range(fleet.replicas))}
        for name in self._replicas:
            router.add(name)
        whats = np.unique(requests.adapter).tolist()
        self._names = {what: self._name(what) for what in whats}
        self._keys = {what: key_of("", self._names[what], b"%d" % what) for what in whats}
        self._ends: list[tuple[float, str]] = []
        self._waits = np.zeros(len(requests.at))
        self._missed = np.zeros(len(requests.at), np.bool_)
        self._highest = 0.0
        self._hot: set[str] = set()

    def _name(self, what: int) -> str:
        return f"adapter-{what}" if what < self._fleet.adapters else ""

    def figures(self) -> dict[str, Any]:
        """Answer all requests; return the figures of those after the warm-up."""
        arrivals, adapters = self._requests.at.tolist(), self._requests.adapter.tolist()
        for index, (at, what) in enumerate(zip(arrivals, adapters, strict=True)):
            self._until(at)
            name = self._router.choose(self._keys[what], [self._names[what]] if self._names[what] else ())
            assert name is not None
            self._router.begin(name)
            replica = self._replicas[name]
            if what == 0:
                self._hot.add(name)
            if replica.busy < self._fleet.slots:
                self._start(replica, index, at)
            else:
                replica.queue.append(index)
            self._look(replica)
        self._until(float("inf"))
        return self._summary()

    def _until(self, now: float) -> None:
        """Let requests end until ``now``, and those that wait begin."""
        while self._ends and self._ends[0][0] <= now:
            at, name = heapq.heappop(self._ends)
            replica = self._replicas[name]
            replica.busy -= 1
            self._router.end(name)
            if replica.queue:
                self._start(replica, replica.queue.popleft(), at)

    def _start(self, replica: _Replica, index: int, now: float) -> None:
        what, seconds = int(self._requests.adapter[index]), float(self._requests.seconds[index])
        is_adapter = what < self._fleet.adapters
        kept = replica.held if is_adapter else replica.cached
        if what in kept:
            kept.move_to_end(what)
        else:
            self._missed[index] = True
            kept[what] = None
            if len(kept) > self._fleet.resident:
                kept.popitem(last=False)
            if is_adapter:
                seconds += self._fleet.load_seconds
                self._router.report(replica.name, [self._names[held] for held in kept])
        replica.busy += 1
        self._waits[index] = now - self._requests.at[index]
        heapq.heappush(self._ends, (now + seconds, replica.name))

    def _look(self, replica: _Replica) -> None:
        """Note how far above the mean a replica is, once replicas have enough calls for a mean."""
        mean = self._router.total / self._fleet.replicas
        if mean >= self._fleet.slots * self._fleet.load / 2:
            self._highest = max(self._highest, (replica.busy + len(replica.queue)) / mean)

    def _summary(self) -> dict[str, Any]:
        counted = np.arange(len(self._waits)) >= WARM_UP * len(self._waits)
        is_adapter = self._requests.adapter < self._fleet.adapters
        waits = self._waits[counted]
        return {
            "loads_per_request": _share(self._missed[counted & is_adapter]),
            "prefix_hits": _share(~self._missed[counted & ~is_adapter]),
            "wait_mean_s": float(waits.mean()),
            "wait_p99_s": float(np.quantile(waits, 0.99)),
            "wait_max_s": float(waits.max()),
            "highest_load": self._highest,
            "hottest_replicas": len(self._hot),
            "remapped": _remapped(self._router, list(self._keys.values())[:: -(-len(self._keys) // KEYS)]),
        }


def _share(flags: NDArray[np.bool_]) -> float | None:
    return float(flags.mean()) if len(flags) else None


def _remapped(router: Router, keys: list[int]) -> float:
    """Return the share of the keys whose replica changes when one is lost, the mean of all replicas; none has calls."""
    moved = 0
    for name in router.replicas:
        router.report(name, ())
    before = [router.choose(key) for key in keys]
    for name in router.replicas:
        router.remove(name)
        moved += sum(router.choose(key) != was for key, was in zip(keys, before, strict=True))
        router.add(name)
    return moved / len(keys) / len(router.replicas)
