"""The choice of a replica for a call. Needs nothing of Ray, so that simulations use these very classes.

Rendezvous hashing with bounded load: each key ranks all replicas by a hash of key and replica, and a call goes to the
first of them that is not full. Every key has its own order, so the keys of a lost replica are spread over all others
and no other key moves (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998). A replica is
full at 1.25 times the mean load, rounded up to a whole call, so that a popular key spills to the next replicas of its
order instead of waiting (Mirrokni, Thorup, Zadimoghaddam, "Consistent hashing with bounded loads", 2018). Of the
replicas that are not full, those that have the adapter in memory come first.
"""

from __future__ import annotations

import hashlib
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

FACTOR = 1.25
"""Calls of a replica over the mean of all, from which on it is full."""

FLOOR = 4
"""Calls below which a replica is never full: with few calls, a mean says nothing."""

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of splitmix64 (Steele, Lea, Flood, 2014)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def key_of(tenant: str, adapter: str, beginning: bytes = b"") -> int:
    """Return the key of a call, 64 bits: its tenant with its adapter, or for the base with the prompt's beginning."""
    what = b"a" + adapter.encode() if adapter else b"b" + beginning
    name = tenant.encode()
    digest = hashlib.blake2b(b"%d:%b%b" % (len(name), name, what), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class Router(ABC):
    """The replicas, the calls that each of them answers, and the choice of one for the next call.

    Arrays have shape (replicas,). Several gateways, each with a router of its own over its own calls, keep the bound
    together but for the rounding: a sum of loads below 1.25 times their means is below 1.25 times the mean of the sum.
    """

    def __init__(self, seed: int = 0) -> None:
        """Start without replicas. seed: of random choices."""
        self._names: list[str] = []
        self._places: dict[str, int] = {}
        self._loads: NDArray[np.int64] = np.zeros(0, np.int64)
        self._seeds: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._resident: list[frozenset[str]] = []
        self._holders: dict[str, set[int]] = {}  # places by adapter
        self._random = random.Random(seed)

    # ---------------------------------------------------------------------------------------------- the replicas ---

    @property
    def replicas(self) -> tuple[str, ...]:
        """The names of all replicas."""
        return tuple(self._names)

    @property
    def loads(self) -> Mapping[str, int]:
        """Calls in flight by replica."""
        return dict(zip(self._names, self._loads.tolist(), strict=True))

    @property
    def total(self) -> int:
        """Calls in flight, all together."""
        return int(self._loads.sum())

    def add(self, name: str) -> None:
        """Add a replica without calls, unless it is there."""
        if name in self._places:
            return
        seed = hashlib.blake2b(name.encode(), digest_size=8, person=b"infeng-replica").digest()
        self._places[name] = len(self._names)
        self._names.append(name)
        self._resident.append(frozenset())
        self._loads = np.append(self._loads, np.int64(0))
        self._seeds = np.append(self._seeds, np.uint64(int.from_bytes(seed, "little")))

    def remove(self, name: str) -> None:
        """Remove a replica, if it is there; calls that it still answers need no ``end``."""
        place = self._places.get(name)
        if place is None:
            return
        self.report(name, ())
        del self._names[place], self._resident[place]
        self._loads, self._seeds = np.delete(self._loads, place), np.delete(self._seeds, place)
        self._places = {name: number for number, name in enumerate(self._names)}
        self._holders = {
            adapter: {holder - (holder > place) for holder in holders} for adapter, holders in self._holders.items()
        }

    def report(self, name: str, resident: Collection[str]) -> None:
        """Note which adapters a replica has in memory; an unknown replica is ignored."""
        place = self._places.get(name)
        if place is None:
            return
        before, now = self._resident[place], frozenset(resident)
        for adapter in before - now:
            holders = self._holders[adapter]
            holders.discard(place)
            if not holders:
                del self._holders[adapter]
        for adapter in now - before:
            self._holders.setdefault(adapter, set()).add(place)
        self._resident[place] = now

    # ------------------------------------------------------------------------------------------------- the calls ---

    def begin(self, name: str) -> None:
        """Count a call that a replica answers from now on."""
        self._loads[self._places[name]] += 1

    def end(self, name: str) -> None:
        """Count it no more; a replica that is gone is ignored."""
        place = self._places.get(name)
        if place is not None and self._loads[place] > 0:
            self._loads[place] -= 1

    def choose(self, key: int, adapters: Collection[str] = (), avoid: Collection[str] = ()) -> str | None:
        """Return the replica for a call, None if there is none.

        adapters: the names that its adapter may have among the resident ones. avoid: replicas that refused the call.
        """
        allowed = np.ones(len(self._names), np.bool_)
        for name in avoid:
            if name in self._places:
                allowed[self._places[name]] = False
        if not allowed.any():
            return None
        return self._names[self._choice(key, adapters, allowed)]

    @abstractmethod
    def _choice(self, key: int, adapters: Collection[str], allowed: NDArray[np.bool_]) -> int:
        """Return the place of the chosen replica; at least one is ``allowed``."""

    def _order(self, key: int) -> NDArray[np.int64]:
        """Return the places in the order of a key: splitmix64 of key and replica, largest first."""
        with np.errstate(over="ignore"):
            mixed = self._seeds ^ np.uint64(key)
            for shift, factor in zip(_SHIFTS, _MIX, strict=False):
                mixed = (mixed ^ (mixed >> shift)) * factor
            mixed ^= mixed >> _SHIFTS[2]
        return np.argsort(mixed)[::-1]


class Rendezvous(Router):
    """Rendezvous hashing with bounded load; adapters in memory come first."""

    def most(self) -> int:
        """Return the calls that a replica may have with the next one: 1.25 times the mean of all, at least FLOOR.

        It is rounded up to a whole call, as in the paper, so one replica at least may have one more.
        """
        return max(FLOOR, math.ceil(FACTOR * (self.total + 1) / len(self._names)))

    def _choice(self, key: int, adapters: Collection[str], allowed: NDArray[np.bool_]) -> int:
        order = self._order(key)
        order = order[allowed[order]]
        free = order[self._loads[order] < self.most()]
        if not len(free):  # those that are not full have refused
            return int(order[np.argmin(self._loads[order])])
        holders = set[int]().union(*(self._holders.get(adapter, ()) for adapter in adapters))
        if holders:
            for place in free.tolist():
                if place in holders:
                    return int(place)
        return int(free[0])


class Hash(Router):
    """The first replica of a key's order, whatever its load."""

    def _choice(self, key: int, adapters: Collection[str], allowed: NDArray[np.bool_]) -> int:
        order = self._order(key)
        return int(order[allowed[order]][0])


class Random(Router):
    """Any replica."""

    def _choice(self, key: int, adapters: Collection[str], allowed: NDArray[np.bool_]) -> int:
        return int(self._random.choice(np.flatnonzero(allowed)))


class PowerOfTwo(Router):
    """The less loaded of two random ones (Mitzenmacher, "The power of two choices", 2001)."""

    def _choice(self, key: int, adapters: Collection[str], allowed: NDArray[np.bool_]) -> int:
        places = np.flatnonzero(allowed).tolist()
        two = self._random.sample(places, min(2, len(places)))
        return int(min(two, key=lambda place: self._loads[place]))


ROUTES: Mapping[str, type[Router]] = MappingProxyType(
    {"rendezvous": Rendezvous, "power-of-two": PowerOfTwo, "hash": Hash, "random": Random}
)
"""Routers by the names that options give them."""
