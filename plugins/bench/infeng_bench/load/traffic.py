"""Requests drawn from a load and a seed: arrival, tenant, adapter, lengths and shared prefix of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_bench.engine.work import FIRST_ID
from infeng_bench.load import prompts
from infeng_bench.load.arrivals import Lengths, trace
from infeng_bench.load.kinds import AUTO, Load, check_traffic
from infeng_bench.load.requests import Job
from infeng_core.api import UsageError

GREEDY = "greedy"
CHUNK = 4096
ABSENT = -1  # as ``adapter``: the base model; as ``prefix``: no shared prefix

ADAPTERS, TIMES, LENGTHS, TENANTS, URGENT, PREFIXES, PREFIX_IDS = 3, *range(10, 16)  # streams of a seed

Capacity = Callable[[float, float], float]
"""``(mean prompt tokens, mean new tokens)`` -> requests per second that can be served."""


class Arrival(NamedTuple):
    """One request."""

    at: float  # seconds after the beginning
    tenant: str
    priority: int
    adapter: str | None
    prompt: int  # tokens of the prompt, with its shared prefix
    new: int  # new tokens
    prefix: int  # index of the shared prefix, or ABSENT
    prefix_length: int


@dataclass(frozen=True, eq=False)
class Traffic:
    """All requests of a run in order of arrival; arrays have shape (requests,)."""

    seed: int
    tenants: Sequence[str]
    adapters: Sequence[str]
    rate: float  # mean requests per second; infinite if all arrive at the beginning
    prefix_length: int
    index: NDArray[np.int64]  # determines the ids of the request's prompt
    at: NDArray[np.float64]
    tenant: NDArray[np.int16]
    priority: NDArray[np.int8]
    adapter: NDArray[np.int16]
    prompt: NDArray[np.int32]
    new: NDArray[np.int32]
    prefix: NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.at)

    def __iter__(self) -> Iterator[Arrival]:
        names = [*self.adapters, None]  # the last for ABSENT
        columns = (self.at, self.tenant, self.priority, self.adapter, self.prompt, self.new, self.prefix)
        for begin in range(0, len(self), CHUNK):  # few Python objects at a time
            rows = zip(*(column[begin : begin + CHUNK].tolist() for column in columns), strict=True)
            for at, tenant, priority, adapter, prompt, new, prefix in rows:
                length = self.prefix_length if prefix != ABSENT else 0
                yield Arrival(at, self.tenants[tenant], priority, names[adapter], prompt, new, prefix, length)

    def jobs(self, vocab: int, *, is_closed: bool = False) -> Iterator[Job]:
        """Yield the requests with the ids of their prompts. is_closed: all come at the beginning."""
        for place, one in enumerate(self):
            at = 0.0 if is_closed else one.at
            yield Job(at, self.ids(place, vocab), one.new, one.adapter, one.tenant, one.priority)

    @staticmethod
    def of(jobs: Sequence[Job]) -> Traffic:
        """Return jobs as requests of one tenant without adapters."""
        table = np.array([(job.at, len(job.prompt), job.new) for job in jobs]).reshape(-1, 3)
        none, absent = np.zeros(len(jobs), np.int16), np.full(len(jobs), ABSENT, np.int16)
        index, (prompt, new) = np.arange(len(jobs)), table[:, 1:].astype(np.int32).T
        return Traffic(
            0, ("",), (), math.inf, 0, index, table[:, 0], none, none.astype(np.int8), absent, prompt, new, absent
        )

    def only(self, mask: NDArray[Any]) -> Traffic:
        """Return some of the requests, by a mask or indices."""
        names = ("index", "at", "tenant", "priority", "adapter", "prompt", "new", "prefix")
        return replace(self, **{name: getattr(self, name)[mask] for name in names})

    def without(self, tenant: str) -> Traffic:
        """Return the requests of all other tenants."""
        return self.only(self.tenant != list(self.tenants).index(tenant))

    def ids(self, place: int, vocab: int) -> list[int]:
        """Return the prompt's token ids of the request at index ``place``: the shared prefix, then its own."""
        length, prefix = int(self.prompt[place]), int(self.prefix[place])
        shared: list[int] = []
        if prefix != ABSENT:
            low = min(FIRST_ID, vocab - 1)
            rng = np.random.default_rng([self.seed, PREFIX_IDS, prefix])
            shared = rng.integers(low, vocab, self.prefix_length).tolist()
        return shared + prompts.random_ids(length - len(shared), self.seed, int(self.index[place]), vocab)


def draw(load: Load, count: int, seed: int, context: int, capacity: Capacity | None = None) -> Traffic:
    """Return ``count`` requests of ``load``; the same arguments give the same requests.

    context: most positions of one request; longer prompts are cut so that one new token fits, then the numbers of new
    tokens. capacity: of which a rate or scale of ``auto`` is a share; None if the load states its rate.

    Raises UsageError for an unreadable trace, a load that is not traffic, or a rate of ``auto`` without a capacity.
    """
    check_traffic(load)
    prompt, new, recorded = _lengths(load, count, seed, context)
    shared = min(int(load["prefix"]), max(0, context - 2))
    prefix = np.full(count, ABSENT, np.int16)
    if shared:
        shares = weights(int(load["prefixes"]), 1.0)
        prefix[:] = np.random.default_rng([seed, PREFIXES]).choice(len(shares), count, p=shares)
        prompt = np.maximum(prompt, shared + 1)
        new = np.minimum(new, context - prompt)
    rate = _rate(load, prompt, new, capacity)
    at = _times(load, count, seed, rate) if recorded is None else recorded / _scale(load, recorded, rate)
    tenants, tenant = _tenants(load, count, seed)
    adapters, adapter = _adapters(load, count, seed)
    urgent = np.random.default_rng([seed, URGENT]).random(count) < load["urgent"]
    mean = (count - 1) / at[-1] if count > 1 and at[-1] > 0 else math.inf
    return Traffic(
        seed,
        tenants,
        adapters,
        mean if recorded is not None else rate,
        shared,
        np.arange(count),
        at,
        tenant.astype(np.int16),
        urgent.astype(np.int8),
        adapter.astype(np.int16),
        prompt.astype(np.int32),
        new.astype(np.int32),
        prefix,
    )


Ints = NDArray[np.int64]


def _lengths(load: Load, count: int, seed: int, context: int) -> tuple[Ints, Ints, NDArray[np.float64] | None]:
    """Return prompt and new tokens of each request and, of a trace, its recorded times."""
    if load.file is not None:
        lines = trace(load.file, count, 1.0, context)
        table = np.array([(line.at, line.prompt, line.new) for line in lines])
        turns = -(-count // len(lines))
        pause = table[-1, 0] / max(1, len(lines) - 1)  # between two passes over a trace that is too short
        times = np.concatenate([table[:, 0] + turn * (table[-1, 0] + pause) for turn in range(turns)])[:count]
        lengths = np.tile(table[:, 1:], (turns, 1))[:count].astype(np.int64)
        return lengths[:, 0], lengths[:, 1], times
    rng = np.random.default_rng([seed, LENGTHS])
    asked, wanted = load["prompt"], load["output"]
    assert isinstance(asked, Lengths) and isinstance(wanted, Lengths)
    prompt = asked.sample(rng, count, context - 1)
    return prompt, np.minimum(wanted.sample(rng, count, context), context - prompt), None


def _rate(load: Load, prompt: Ints, new: Ints, capacity: Capacity | None) -> float:
    """Return the mean rate in requests per second; 0 for a trace with a numeric scale."""
    if not load.needs_capacity:
        return 0.0 if load.kind == "trace" else float(load["rate"])
    if capacity is None:
        key = "scale" if load.kind == "trace" else "rate"
        raise UsageError(f"load {load.text!r}", f"{key} is auto, and the capacity is not known", f"give {key}=NUMBER")
    return float(load["load"]) * capacity(float(prompt.mean()), float(new.mean()))


def _scale(load: Load, recorded: NDArray[np.float64], rate: float) -> float:
    if load["scale"] != AUTO:
        return float(load["scale"])
    own = (len(recorded) - 1) / recorded[-1] if recorded[-1] > 0 else rate
    return rate / own


def _times(load: Load, count: int, seed: int, rate: float) -> NDArray[np.float64]:
    """Return ascending arrival times; a Poisson process starts at 0."""
    if math.isinf(rate):
        return np.zeros(count)
    rng = np.random.default_rng([seed, TIMES])
    if load.kind != "bursts":
        return _poisson(rng, rate, count)
    size = int(load["size"])
    every = 2 * size / rate if load["every"] == AUTO else float(load["every"])
    calm = rate - size / every
    if calm < 0:
        why = f"bursts of {size} every {every:g} s are {size / every:g} a second, more than rate={rate:g}"
        raise UsageError(f"load {load.text!r}", why, "give a higher rate, or fewer in a burst")
    between = _poisson(rng, calm, count) if calm > 0 else np.zeros(0)
    bursts = np.repeat((1 + np.arange(-(-count // size))) * every, size)
    return np.sort(np.concatenate([between, bursts]), kind="stable")[:count]


def _poisson(rng: np.random.Generator, rate: float, count: int) -> NDArray[np.float64]:
    gaps = rng.exponential(1 / rate, count)
    gaps[:1] = 0.0
    return np.cumsum(gaps)


def _tenants(load: Load, count: int, seed: int) -> tuple[Sequence[str], Ints]:
    if load.kind != "tenants":
        return ("",), np.zeros(count, np.int64)
    others = int(load["others"])
    weights = np.array([float(load["greedy"]), *[1.0] * others])
    chosen = np.random.default_rng([seed, TENANTS]).choice(1 + others, count, p=weights / weights.sum())
    return (GREEDY, *(f"other{k}" for k in range(others))), chosen


def _adapters(load: Load, count: int, seed: int) -> tuple[Sequence[str], Ints]:
    if load.kind != "zipf":
        return (), np.full(count, ABSENT)
    names = tuple(f"a{k}" for k in range(int(load["adapters"])))
    chosen = choices(count, len(names), float(load["alpha"]), bool(load["include_base"]), seed)
    return names, np.where(chosen == len(names), ABSENT, chosen)


def weights(count: int, alpha: float) -> list[float]:
    """Return the probabilities of ``count`` choices: the k-th, from 0, has weight 1 / (k + 1) ** alpha."""
    raw = [(k + 1) ** -alpha for k in range(count)]
    total = sum(raw)
    return [weight / total for weight in raw]


def choices(requests: int, adapters: int, alpha: float, include_base: bool, seed: int) -> NDArray[np.int64]:
    """Return the index of each request's adapter, (requests,); the index ``adapters`` means the base model.

    Adapter 0 is the most popular. alpha: 0 or less means in turn. include_base: the base is one more choice, the last.
    """
    count = adapters + bool(include_base or not adapters)
    if alpha <= 0:
        return np.arange(requests) % count
    return np.random.default_rng([seed, ADAPTERS]).choice(count, requests, p=weights(count, alpha))
